"""What a QNN context binary says about itself, read with libQnnSystem."""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snapbake import qnn_library, qnn_types
from snapbake.child_process import ChildDiedError, call_in_child
from snapbake.errors import SnapbakeError
from snapbake.files import require_file


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a graph.

    `dtype` is a name out of qnn_types.DATA_TYPES ("int32", "float16", "ufix16" ...). Where the
    tensor holds codes, real value = (code + offset) x scale, both for the whole tensor; QNN's
    offset is minus ONNX's zero point. `scale` and `offset` are None for other tensors.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None
    offset: int | None


@dataclass(frozen=True)
class GraphInfo:
    """A graph of a context binary with its borders, in the binary's order."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class BinaryInfo:
    """A context binary's own description.

    `build_id` is the QAIRT build that compiled it, `soc_model` the chip's number in QNN (None in
    binaries of old releases, which do not say it), the versions are "major.minor.patch".
    """

    build_id: str
    soc_model: int | None
    blob_version: str
    core_api: str
    backend_api: str
    graphs: tuple[GraphInfo, ...]


def read_context_binary(path: Path) -> BinaryInfo:
    """Read the metadata of a context binary, weight-shared ones included.

    QNN's parser trusts what it reads, and a damaged file can end the process that reads it, so
    it runs in a child. Raises SnapbakeError when the file is missing, is no context binary, is
    cut short or damaged, or when the QNN libraries cannot run on this machine.
    """
    qnn_library.require_supported_machine()
    require_file(path)
    try:
        return call_in_child(_read, path)
    except ChildDiedError as death:
        raise SnapbakeError(
            f"{path} could not be read: libQnnSystem.so {death}; the file is probably damaged, "
            "build or copy it again"
        ) from death


def _read(path: Path) -> BinaryInfo:
    with open_context_binary(path) as (_, binary):
        return binary_info(binary)


@contextmanager
def open_context_binary(path: Path) -> Iterator[tuple[np.ndarray, qnn_types.Binary]]:
    """Map a context binary into memory and yield its bytes (uint8) and QNN's description of it.

    The description and all that it points to are valid inside the block only.
    """
    if path.stat().st_size == 0:
        raise SnapbakeError(f"{path} is empty; build it again")
    interface = qnn_library.interface(
        "libQnnSystem.so", "QnnSystemInterface_getProviders", qnn_types.SystemInterface
    )
    handle = c_void_p()
    if code := interface.context_create(byref(handle)):
        raise SnapbakeError(f"libQnnSystem.so could not start (QNN error {code}); see its message")
    try:
        # A mapping, not a copy: these files have hundreds of megabytes.
        content = np.memmap(path, np.uint8, mode="r")
        binary = POINTER(qnn_types.Binary)()
        code = interface.context_get_metadata(
            handle, content.ctypes.data, content.size, byref(binary)
        )
        if code:
            raise SnapbakeError(
                f"{path} is not a whole QNN context binary (QNN error {code}): it is cut short, "
                "damaged or another kind of file; build or copy it again"
            )
        yield content, binary.contents
    finally:
        interface.context_free(handle)


def graph_fields(binary: qnn_types.Binary) -> list[qnn_types.GraphFields]:
    """Return the graphs' descriptions in the binary's order."""
    fields = _fields(binary)
    return [fields.graphs[index].fields for index in range(fields.graph_count)]


def _fields(binary: qnn_types.Binary) -> Any:
    return binary.fields.v3 if binary.version >= 3 else binary.fields.v1


def binary_info(binary: qnn_types.Binary) -> BinaryInfo:
    """Return what QNN's description of a binary says, free of its memory."""
    fields = _fields(binary)
    return BinaryInfo(
        build_id=_text(fields.build_id),
        soc_model=fields.soc_model if binary.version >= 3 else None,
        blob_version=str(fields.blob_version),
        core_api=str(fields.core_api),
        backend_api=str(fields.backend_api),
        graphs=tuple(
            GraphInfo(
                name=_text(graph.name),
                inputs=_tensor_infos(graph.inputs, graph.input_count),
                outputs=_tensor_infos(graph.outputs, graph.output_count),
            )
            for graph in graph_fields(binary)
        ),
    )


def _tensor_infos(tensors: Any, count: int) -> tuple[TensorInfo, ...]:
    return tuple(_tensor_info(tensors[index].fields) for index in range(count))


def _tensor_info(fields: qnn_types.TensorFields) -> TensorInfo:
    known = qnn_types.DATA_TYPES.get(fields.data_type)
    scale, offset = _encoding(fields.quantize_params)
    return TensorInfo(
        name=_text(fields.name),
        dtype=known.name if known else f"unknown type {fields.data_type:#x}",
        shape=tuple(fields.dimensions[axis] for axis in range(fields.rank)),
        scale=scale,
        offset=offset,
    )


def _encoding(parameters: qnn_types.QuantizeParams) -> tuple[float | None, int | None]:
    if parameters.definition == qnn_types.DEFINED:
        member = qnn_types.ENCODINGS_BY_VALUE.get(parameters.encoding)
        if member is not None:
            encoding = getattr(parameters.value, member)
            return encoding.scale, encoding.offset
    return None, None


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", errors="replace")
