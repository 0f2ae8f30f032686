"""ONNX graphs on disk whose weights lie in a data file beside them.

A graph of a language model is about 1 MB; its weights are gigabytes. Everything here reads and
writes the graph alone and treats the weights as places (file, offset, length) in the data file.
Graphs that lie in one folder may share one data file.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from snapbake.errors import SnapbakeError
from snapbake.external_data import Place, place_of
from snapbake.files import atomic_path, require_file


def load_graph(path: Path) -> onnx.ModelProto:
    """Read a graph without the weights that it refers to."""
    require_file(path)
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise SnapbakeError(f"{path} is not an ONNX file; build it again") from error
    if not model.graph.node:
        raise SnapbakeError(f"{path} holds no operator; build it again")
    return model


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph; external tensors stay references. Equal graphs give equal bytes."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))


def byte_size(tensor: onnx.TensorProto) -> int:
    """Return the bytes that shape and dtype ask for, not counting sub-byte packing."""
    itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=np.int64)) * itemsize


def external_tensors(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, Place]]:
    """Yield every external tensor of the main graph: initializers and values of Constant nodes."""
    constants = (attribute.t for node in model.graph.node for attribute in node.attribute)
    for tensor in (*model.graph.initializer, *constants):
        place = place_of(tensor)
        if place:
            yield tensor, place


def require_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Raise unless the data files of the graph at `path` are there, whole and usable.

    onnx 1.23 and onnxruntime 1.32 refuse data files that are symbolic links, have a second hard
    link, or lie outside the graph's folder; a file cut short is taken by some tools without a word.
    """
    ends: dict[str, int] = {}
    for tensor, place in external_tensors(model):
        if Path(place.location).name != place.location:
            raise SnapbakeError(
                f"{path}: the tensor {tensor.name} points to {place.location}, outside the graph's "
                "folder; put the data file beside the graph and build the graph again"
            )
        if place.length != byte_size(tensor):
            raise SnapbakeError(
                f"{path}: the tensor {tensor.name} {list(tensor.dims)} has {place.length} bytes in "
                f"{place.location} and needs {byte_size(tensor)}; build the graph again"
            )
        ends[place.location] = max(ends.get(place.location, 0), place.offset + place.length)
    for name, end in ends.items():
        data = path.parent / name
        require_file(data)
        if data.is_symlink() or data.stat().st_nlink > 1:
            raise SnapbakeError(
                f"{data} is a link, which onnx and onnxruntime refuse; put a real copy there"
            )
        if data.stat().st_size < end:
            raise SnapbakeError(
                f"{data} has {data.stat().st_size} bytes and {path} needs {end}; the file was cut "
                "short, so build it again"
            )


def shape_of(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return the shape of an input, output or inner tensor; a dimension without size is a name."""
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in value.type.tensor_type.shape.dim
    ]
