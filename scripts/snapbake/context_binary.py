"""Context binaries: compiled by onnxruntime-qnn in a child process, named, and read back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from snapbake import graph_names, qnn_library, qnn_session, qnn_system, qnn_types
from snapbake.child_process import ChildDiedError, call_in_child
from snapbake.errors import SnapbakeError
from snapbake.files import atomic_path
from snapbake.htp_binary import OPTIMIZATION_LEVEL, HtpBinary, read_htp_binary, require_target
from snapbake.htp_target import HtpTarget
from snapbake.onnx_files import load_graph, require_external_data, shape_of

_MIB: Final = 1 << 20
# Bits of an element in the binary where they are not those of the ONNX file: HTP computes floating
# point in 16 bits, and 4-bit elements are packed.
_BITS: Final[Mapping[int, int]] = {
    TensorProto.FLOAT: 16,
    TensorProto.DOUBLE: 16,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
}


def compile_graph(model: Path, graph_name: str, target: HtpTarget, output: Path) -> None:
    """Compile an ONNX graph into a context binary with this one graph.

    The graph's name in it is `graph_name` padded with underscores (graph_names.padded_name). The
    bytes depend on the model, its file's name, the graph name and the target, not on the folder.
    Raises SnapbakeError when operators are left outside, when the weights exceed the target's
    limit, when the compiler fails or crashes, and when the binary is not what was asked for.
    """
    graph_names.require_graph_name(graph_name)
    graph = load_graph(model)
    require_external_data(graph, model)
    require_fitting_weights(model, graph, target)
    with qnn_session.work_folder(output, weight_bytes(graph)) as folder:
        binary, (given_name,) = compile_in_child([model], target, folder)
        name = graph_names.padded_name(graph_name, len(given_name))
        graph_names.rename_in_file(binary, {given_name: name})
        compiled = read_htp_binary(binary)
        require_target(output, compiled, target)
        require_graphs(output, compiled, {name: (model, graph)})
        with atomic_path(output) as temporary:
            binary.replace(temporary)


def weight_bytes(graph: onnx.ModelProto) -> int:
    """Return about how many bytes the weights of a graph take in a context binary."""
    return sum(
        int(np.prod(tensor.dims, dtype=np.int64)) * _bits(tensor.data_type) // 8
        for tensor in graph.graph.initializer
    )


def _bits(element_type: int) -> int:
    itemsize = helper.tensor_dtype_to_np_dtype(element_type).itemsize
    return _BITS.get(element_type, itemsize * 8)


def require_fitting_weights(model: Path, graph: onnx.ModelProto, target: HtpTarget) -> None:
    """Raise when the weights of a graph are larger than the target lets a graph be."""
    size = -(-weight_bytes(graph) // _MIB)
    if target.graph_limit_mb is not None and size > target.graph_limit_mb:
        raise SnapbakeError(
            f"{model} has {size} MiB of weights and a graph for {target} may have "
            f"{target.graph_limit_mb} MiB; use fewer bits a weight, a smaller model or another chip"
        )


def compile_in_child(
    models: Sequence[Path], target: HtpTarget, folder: Path
) -> tuple[Path, list[str]]:
    """Compile one model, or several that share weights, into one context binary in `folder`.

    Returns its path and the names that onnxruntime gave to the graphs, in the models' order.
    Raises SnapbakeError, also when the compiler crashes.
    """
    try:
        names = call_in_child(compile_models, models, target, folder)
    except ChildDiedError as death:
        files = " and ".join(map(str, models))
        raise SnapbakeError(f"the compiler of {files} for {target} {death}") from death
    binaries = sorted(folder.glob("*.bin"))
    if len(binaries) != 1:
        raise SnapbakeError(
            f"onnxruntime wrote {len(binaries)} context binaries where one was due; this version "
            "of onnxruntime-qnn works in another way than 2.7.0"
        )
    return binaries[0], names


def compile_models(models: Sequence[Path], target: HtpTarget, folder: Path) -> list[str]:
    """Do the work of compile_in_child, in this process: `folder` gets the binary and wrappers."""
    options = {
        "backend_path": str(qnn_library.library_folder() / "libQnnHtp.so"),
        "soc_model": str(target.soc_model),
        "htp_arch": str(target.arch),
        "vtcm_mb": str(target.vtcm_mb),
        "htp_graph_finalization_optimization_mode": str(OPTIMIZATION_LEVEL),
        # Without effect on what is quantised.
        "enable_htp_fp16_precision": "1",
    }
    shared = len(models) > 1
    if shared:
        options["enable_htp_weight_sharing"] = "1"
    # All sessions must live until the last one has written the binary.
    sessions = []
    names = []
    for index, model in enumerate(models):
        wrapper = folder / f"{index}.onnx"
        entries = {
            "ep.context_enable": "1",
            "ep.context_file_path": str(wrapper),
            "ep.context_embed_mode": "0",
        }
        if shared:
            entries["ep.share_ep_contexts"] = "1"
            if index == len(models) - 1:
                entries["ep.stop_share_ep_contexts"] = "1"
        sessions.append(qnn_session.create_session(model, str(target), options, entries))
        names.append(_partition(model, wrapper))
    return names


def _partition(model: Path, wrapper: Path) -> str:
    """Return the name of the only partition in onnxruntime's wrapper around a context binary."""
    nodes = load_graph(wrapper).graph.node
    kinds = [node.op_type for node in nodes]
    if kinds != ["EPContext"]:
        raise SnapbakeError(
            f"{model} was compiled into {', '.join(sorted(kinds))} instead of one graph; remove "
            "what connects nothing or splits it"
        )
    return next(
        helper.get_attribute_value(attribute).decode()
        for attribute in nodes[0].attribute
        if attribute.name == "partition_name"
    )


def require_graphs(
    path: Path, binary: HtpBinary, models: Mapping[str, tuple[Path, onnx.ModelProto]]
) -> None:
    """Raise unless a binary has exactly the graphs of `models`, with their inputs and outputs."""
    graphs = {graph.name: graph for graph in binary.info.graphs}
    if graphs.keys() != models.keys():
        raise SnapbakeError(
            f"{path} has the graphs {', '.join(sorted(graphs))} where {', '.join(sorted(models))} "
            "are due; this version of onnxruntime-qnn names graphs in another way than 2.7.0"
        )
    for name, (model, onnx_graph) in models.items():
        weights = {tensor.name for tensor in onnx_graph.graph.initializer}
        inputs = [each for each in onnx_graph.graph.input if each.name not in weights]
        for kind, values, tensors in (
            ("inputs", inputs, graphs[name].inputs),
            ("outputs", onnx_graph.graph.output, graphs[name].outputs),
        ):
            expected = {each.name: _border(each) for each in values}
            found = {each.name: _compiled_border(each) for each in tensors}
            if expected != found:
                raise SnapbakeError(
                    f"{path}: the {kind} are not those of {model}: {_difference(expected, found)}"
                )


_Border = tuple[DTypeLike, tuple[int | str, ...]]


def _border(value: onnx.ValueInfoProto) -> _Border:
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return dtype, tuple(shape_of(value))


def _compiled_border(tensor: qnn_system.TensorInfo) -> _Border:
    known = qnn_types.DATA_TYPES_BY_NAME.get(tensor.dtype)
    return (known.numpy if known and known.numpy else tensor.dtype), tensor.shape


def _difference(expected: Mapping[str, _Border], found: Mapping[str, _Border]) -> str:
    name = next(name for name in {**expected, **found} if expected.get(name) != found.get(name))
    told = [
        f"{each[0]} {list(each[1])}" if each else "missing"
        for each in (expected.get(name), found.get(name))
    ]
    return (
        f"{name} is {told[0]} there and {told[1]} in the binary; freeze every shape and remove "
        "inputs that nothing uses"
    )
