"""The context binary that ships: both graphs in one, weights shared, compared with the proven ones.

The HTP emulator cannot load a binary with shared weights. So the same graphs are also compiled one
by one and proven there, and what the shared binary says of itself must be what those say.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from snapbake import context_binary, graph_names, qnn_session
from snapbake.errors import SnapbakeError
from snapbake.files import atomic_path, sha256_file, write_json
from snapbake.htp_binary import OPTIMIZATION_LEVEL, HtpBinary, read_htp_binary, require_target
from snapbake.htp_target import HtpTarget
from snapbake.onnx_files import external_tensors, load_graph, require_external_data
from snapbake.qnn_system import GraphInfo, TensorInfo
from snapbake.safetensors_file import stored_identity


@dataclass(frozen=True)
class _Part:
    """A graph of the shared binary: its ONNX file and the binary that it was proven in."""

    role: str
    path: Path
    model: onnx.ModelProto
    proven_path: Path
    proven: HtpBinary


def share_weights(
    prefill: Path,
    decode: Path,
    proven: Sequence[Path],
    soc: str,
    target: HtpTarget,
    made_from: Iterable[Path],
    output: Path,
    manifest: Path,
) -> None:
    """Compile both graphs into the weight-shared binary `output` and describe it in `manifest`.

    `proven` are the binaries of the prefill and of the decode graph, in this order; their graphs'
    names are taken over. `manifest` (context.json) says for which chip and with what the binary
    was compiled; its graphs with name, dtype, shape, scale and offset of every input and output
    (real value = (code + offset) x scale); size and SHA-256 of the binary, of the proven ones and
    of all that it was made of: the graphs, their weights and `made_from`, by paths as seen from
    the manifest. `weights_sha256` is the identity of the checkpoint's weights, which is noted in a
    safetensors file of `made_from`. `ratio_to_decode` is its size by that of the decode graph's
    alone.

    Raises SnapbakeError when compiling fails and when the binary differs from the proven ones.
    """
    made_from = list(made_from)
    weights = [path for path in made_from if path.suffix == ".safetensors"]
    if prefill.name == decode.name:
        raise SnapbakeError(
            f"{prefill} and {decode} have the same file name, from which onnxruntime would give "
            "both graphs the same name; rename one"
        )
    parts = [
        _read_part(role, path, proven_path, target)
        for role, path, proven_path in zip(
            ("prefill", "decode"), (prefill, decode), proven, strict=True
        )
    ]
    size = max(context_binary.weight_bytes(part.model) for part in parts)
    with qnn_session.work_folder(output, size) as folder:
        binary, given_names = context_binary.compile_in_child((prefill, decode), target, folder)
        names = [
            graph_names.padded_name(_proven_name(part), len(given_name))
            for part, given_name in zip(parts, given_names, strict=True)
        ]
        graph_names.rename_in_file(binary, dict(zip(given_names, names, strict=True)))
        shared = read_htp_binary(binary)
        require_target(output, shared, target)
        context_binary.require_graphs(
            output,
            shared,
            {name: (part.path, part.model) for name, part in zip(names, parts, strict=True)},
        )
        for part in parts:
            require_same(output, shared, part.proven_path, part.proven)
        description = _describe(binary, shared, soc, target, parts)
        description["binary"] = _file(binary, output, manifest)
        description["proven"] = {
            part.role: _file(part.proven_path, part.proven_path, manifest) for part in parts
        }
        description["made_from"] = _made_from(parts, made_from, manifest)
        description["weights_sha256"] = next(filter(None, map(stored_identity, weights)), None)
        with atomic_path(output) as temporary:
            binary.replace(temporary)
    write_json(manifest, description)


def _read_part(role: str, path: Path, proven_path: Path, target: HtpTarget) -> _Part:
    model = load_graph(path)
    require_external_data(model, path)
    context_binary.require_fitting_weights(path, model, target)
    proven = read_htp_binary(proven_path)
    if len(proven.info.graphs) != 1:
        raise SnapbakeError(
            f"{proven_path} has {len(proven.info.graphs)} graphs; give the binary of the {role} "
            "graph alone, made by compile_graph.py"
        )
    require_target(proven_path, proven, target)
    return _Part(role, path, model, proven_path, proven)


def _proven_name(part: _Part) -> str:
    return graph_names.plain_name(part.proven.info.graphs[0].name)


def require_same(
    shared_path: Path, shared: HtpBinary, proven_path: Path, proven: HtpBinary
) -> None:
    """Raise unless a graph of the shared binary is, by its metadata, the one that was proven.

    Compared are the compiler's build, the graph by its name without padding, and of every tensor
    name, dtype, shape, scale and offset.
    """
    if shared.info.build_id != proven.info.build_id:
        raise SnapbakeError(
            f"{shared_path} was compiled by QAIRT {shared.info.build_id} and {proven_path} by "
            f"{proven.info.build_id}; compile both with the same version"
        )
    proven_graph = proven.info.graphs[0]
    name = graph_names.plain_name(proven_graph.name)
    shared_graph = _graph_of(shared, name)
    if shared_graph is None:
        raise SnapbakeError(
            f"{shared_path} has no graph {name}, which {proven_path} has; compile both again"
        )
    differences = [
        *_differences(shared_graph.inputs, proven_graph.inputs),
        *_differences(shared_graph.outputs, proven_graph.outputs),
    ]
    if differences:
        raise SnapbakeError(
            f"the graph {name} of {shared_path} is not the one proven in {proven_path}: "
            f"{'; '.join(differences[:5])}{' and more' * (len(differences) > 5)}; compile both "
            "from the same graph"
        )


def _graph_of(binary: HtpBinary, plain_name: str) -> GraphInfo | None:
    for graph in binary.info.graphs:
        if graph_names.plain_name(graph.name) == plain_name:
            return graph
    return None


def _differences(shared: Sequence[TensorInfo], proven: Sequence[TensorInfo]) -> list[str]:
    """Say how tensors of the same name differ, one sentence's part each."""
    there, here = ({tensor.name: asdict(tensor) for tensor in side} for side in (proven, shared))
    told = [f"{name} is missing" for name in there.keys() - here.keys()]
    told += [f"{name} is new" for name in here.keys() - there.keys()]
    told += [
        f"{name} has {field} {here[name][field]} instead of {value}"
        for name, fields in there.items()
        if name in here
        for field, value in fields.items()
        if here[name][field] != value
    ]
    return told


def _describe(
    binary: Path, shared: HtpBinary, soc: str, target: HtpTarget, parts: Sequence[_Part]
) -> dict[str, Any]:
    sizes = {part.role: part.proven_path.stat().st_size for part in parts}
    return {
        "soc": soc,
        "soc_model": target.soc_model,
        "arch": target.arch,
        "vtcm_mb": target.vtcm_mb,
        "optimization_level": OPTIMIZATION_LEVEL,
        "qairt_build": shared.info.build_id,
        "qnn_core_api": shared.info.core_api,
        "htp_backend_api": shared.info.backend_api,
        "blob_version": shared.info.blob_version,
        "versions": qnn_session.installed_versions(),
        "graphs": {
            part.role: asdict(graph)
            for part in parts
            if (graph := _graph_of(shared, _proven_name(part)))
        },
        "ratio_to_decode": binary.stat().st_size / sizes["decode"],
    }


def _made_from(
    parts: Sequence[_Part], others: Iterable[Path], manifest: Path
) -> list[Mapping[str, Any]]:
    """Describe the graphs, their data files and the other files, each once, ordered by path."""
    files = [part.path for part in parts]
    for part in parts:
        locations = {place.location for _, place in external_tensors(part.model)}
        files += [part.path.parent / location for location in locations]
    described = {}
    for path in (*files, *others):
        place = os.path.relpath(path, manifest.parent)
        if place not in described:
            described[place] = _file(path, path, manifest)
    return [described[place] for place in sorted(described)]


def _file(content: Path, path: Path, manifest: Path) -> dict[str, Any]:
    """Describe the file `content`, which is or will be at `path`."""
    return {
        "path": os.path.relpath(path, manifest.parent),
        "bytes": content.stat().st_size,
        "sha256": sha256_file(content),
    }
