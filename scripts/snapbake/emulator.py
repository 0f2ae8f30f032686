"""A context binary on QNN's HTP emulator. Runs in a child process, since the emulator can crash.

net_run.Emulator is the way in: it checks what it is given and calls the functions of this module
in a child.
"""

import functools
import time
from collections.abc import Mapping
from ctypes import Array, byref, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from snapbake import qnn_library, qnn_system, qnn_types, raw_files
from snapbake.qnn_system import GraphInfo
from snapbake.qnn_types import QnnError

LIBRARY: Final = "libQnnHtp.so"


@dataclass(frozen=True)
class Inference:
    """One execution of a graph: input files by tensor name, and what to write into which folder.

    `native_inputs` and `native_outputs` say what the files hold, see raw_files.
    """

    graph: str
    inputs: Mapping[str, Path]
    outputs: tuple[str, ...]
    folder: Path
    native_inputs: bool
    native_outputs: bool


def load(binary: Path) -> float:
    """Load a context binary and keep it; returns the seconds that it took.

    Raises QnnError with what the backend returned.
    """
    start = time.monotonic()
    _loaded(binary)
    return time.monotonic() - start


def infer(binary: Path, inference: Inference) -> float:
    """Execute a graph of a loaded binary; returns the seconds of the execution alone.

    The result files, `<tensor>.raw`, are written into `inference.folder`, which must exist.
    Raises QnnError with what the backend returned.
    """
    return _loaded(binary).infer(inference)


@functools.cache
def _loaded(binary: Path) -> "_LoadedBinary":
    return _LoadedBinary(binary)


class _LoadedBinary:
    """A context on the backend and the handles of its graphs."""

    def __init__(self, binary: Path) -> None:
        self._interface = qnn_library.interface(
            LIBRARY, "QnnInterface_getProviders", qnn_types.Interface
        )
        backend = c_void_p()
        _check("backendCreate", self._interface.backend_create(None, None, byref(backend)))
        self._graphs: dict[str, _LoadedGraph] = {}
        with qnn_system.open_context_binary(binary) as (content, description):
            context = c_void_p()
            code = self._interface.context_create_from_binary(
                backend,
                None,
                None,
                content.ctypes.data,
                content.size,
                byref(context),
                None,
            )
            _check("contextCreateFromBinary", code)
            infos = qnn_system.binary_info(description).graphs
            for info, fields in zip(infos, qnn_system.graph_fields(description), strict=True):
                graph = c_void_p()
                code = self._interface.graph_retrieve(context, fields.name, byref(graph))
                _check("graphRetrieve", code)
                self._graphs[info.name] = _LoadedGraph(
                    graph,
                    info,
                    _own_tensors(fields.inputs, fields.input_count),
                    _own_tensors(fields.outputs, fields.output_count),
                )

    def infer(self, inference: Inference) -> float:
        graph = self._graphs[inference.graph]
        inputs = [
            raw_files.read_tensor(
                inference.inputs[tensor.name], tensor, native=inference.native_inputs
            )
            for tensor in graph.info.inputs
        ]
        outputs = [
            np.empty(tensor.shape, raw_files.native_type(tensor)) for tensor in graph.info.outputs
        ]
        _point(graph.inputs, inputs)
        _point(graph.outputs, outputs)
        start = time.monotonic()
        code = self._interface.graph_execute(
            graph.handle,
            graph.inputs,
            len(inputs),
            graph.outputs,
            len(outputs),
            None,
            None,
        )
        seconds = time.monotonic() - start
        _check("graphExecute", code)
        for tensor, values in zip(graph.info.outputs, outputs, strict=True):
            if tensor.name in inference.outputs:
                path = inference.folder / raw_files.file_name(tensor)
                raw_files.write_tensor(path, values, tensor, native=inference.native_outputs)
        return seconds


@dataclass(frozen=True)
class _LoadedGraph:
    handle: c_void_p
    info: GraphInfo
    inputs: Array[qnn_types.Tensor]
    outputs: Array[qnn_types.Tensor]


def _own_tensors(tensors: Any, count: int) -> Array[qnn_types.Tensor]:
    """Copy the tensors of a binary's description, which ends with its file's mapping."""
    own = (qnn_types.Tensor * count)(*tensors[:count])
    for tensor in own:
        fields = tensor.fields
        # Whatever is a pointer is given memory of its own, which ctypes keeps with `own`.
        fields.name = fields.name
        fields.dimensions = (c_uint32 * fields.rank)(*fields.dimensions[: fields.rank])
        fields.is_dynamic_dimensions = None
        if fields.quantize_params.encoding not in qnn_types.ENCODINGS_BY_VALUE:
            fields.quantize_params.definition = qnn_types.UNDEFINED
        fields.memory_type = qnn_types.MEMORY_RAW
    return own


def _point(tensors: Array[qnn_types.Tensor], values: list[np.ndarray]) -> None:
    """Give tensors their memory: C-ordered arrays of the tensors' own element types."""
    for tensor, array in zip(tensors, values, strict=True):
        tensor.fields.memory.client_buffer.data = array.ctypes.data
        tensor.fields.memory.client_buffer.size = array.nbytes


def _check(call: str, code: int) -> None:
    if code:
        raise QnnError(call, code)
