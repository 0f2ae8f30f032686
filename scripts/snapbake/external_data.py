"""Weights that an ONNX graph keeps in a file beside it: looking them up, pointing to them."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from snapbake.errors import SnapbakeError


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor are: file name, offset and length in bytes."""

    location: str
    offset: int
    length: int


def place_of(tensor: TensorProto) -> Place | None:
    """Return the place of an external tensor, None for one whose bytes are in the graph."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return Place(entries["location"], int(entries.get("offset", 0)), int(entries["length"]))


def point_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make a tensor refer to bytes of the file `location`, dropping what it held."""
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


class ExternalWeights:
    """Read access to the external tensors of a graph, one at a time, without loading the file."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self._tensors = {
            tensor.name: (tensor, place)
            for tensor in model.graph.initializer
            if (place := place_of(tensor)) is not None
        }
        self._maps: dict[str, mmap.mmap] = {}
        for _, place in self._tensors.values():
            if place.location in self._maps:
                continue
            path = folder / place.location
            if not path.is_file():
                raise SnapbakeError(
                    f"{path}, the weights of a graph beside it, is missing; rebuild it"
                )
            with path.open("rb") as stream:
                self._maps[place.location] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def names(self) -> Iterator[str]:
        """Yield the names of the external tensors in the graph's order."""
        yield from self._tensors

    def total_bytes(self) -> int:
        """Return how many bytes the tensors take."""
        return sum(place.length for _, place in self._tensors.values())

    def __getitem__(self, name: str) -> NDArray:
        """Return a tensor as a read-only view of the mapped file."""
        tensor, place = self._tensors[name]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        view = np.frombuffer(
            self._maps[place.location], dtype, place.length // dtype.itemsize, place.offset
        )
        return view.reshape(tuple(tensor.dims))
