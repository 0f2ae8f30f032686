"""What a context binary says about itself and its HTP settings."""

import struct
from collections.abc import Mapping
from ctypes import string_at
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from snapbake import qnn_library, qnn_system, qnn_types
from snapbake.child_process import ChildDiedError, call_in_child
from snapbake.errors import SnapbakeError
from snapbake.files import require_file
from snapbake.htp_target import HtpTarget

# How hard the compiler looks for a fast graph, 1 to 3.
OPTIMIZATION_LEVEL: Final = 3

_MIB: Final = 1 << 20


@dataclass(frozen=True)
class GraphSettings:
    """What a graph was compiled with: MiB of VTCM and the optimisation level (1 to 3)."""

    vtcm_mb: int
    optimization_level: int


@dataclass(frozen=True)
class HtpBinary:
    """A context binary's description with HTP's part of it; `settings` by graph name."""

    info: qnn_system.BinaryInfo
    arch: int
    settings: Mapping[str, GraphSettings]


def read_htp_binary(path: Path) -> HtpBinary:
    """Read what a context binary says about itself and about HTP, in a child process."""
    qnn_library.require_supported_machine()
    require_file(path)
    try:
        return call_in_child(describe, path)
    except ChildDiedError as death:
        raise SnapbakeError(
            f"{path} could not be read: libQnnSystem.so {death}; build it again"
        ) from death


def describe(path: Path) -> HtpBinary:
    """Do the work of read_htp_binary in this process, which a damaged file can end."""
    with qnn_system.open_context_binary(path) as (_, binary):
        info = qnn_system.binary_info(binary)
        # QnnHtpSystemContext.h: version, then the architecture; a graph's blob has version,
        # spill-fill bytes (64 bits), VTCM bytes and the optimisation level.
        fields = binary.fields.v3
        if binary.version < 3 or fields.metadata_size < 8:
            raise SnapbakeError(f"{path} does not say for which HTP it is; it is not of QAIRT 2.51")
        _, arch = struct.unpack("<II", string_at(fields.metadata, 8))
        settings = {}
        for graph, described in zip(qnn_system.graph_fields(binary), info.graphs, strict=True):
            settings[described.name] = _graph_settings(path, graph)
        return HtpBinary(info, arch, settings)


def _graph_settings(path: Path, graph: qnn_types.GraphFields) -> GraphSettings:
    if graph.blob_size < 24:
        raise SnapbakeError(f"{path} does not say how it was compiled; it is not of QAIRT 2.51")
    _, _, vtcm_bytes, level = struct.unpack("<IxxxxQII", string_at(graph.blob, 24))
    return GraphSettings(vtcm_bytes // _MIB, level)


def require_target(path: Path, binary: HtpBinary, target: HtpTarget) -> None:
    """Raise unless a binary was compiled for the target, as the binary itself tells it.

    The compiler takes what it is given: a wrong arch is overruled by soc_model without a word.
    """
    if binary.info.soc_model != target.soc_model or binary.arch != target.arch:
        raise SnapbakeError(
            f"{path} is for soc_model {binary.info.soc_model} (v{binary.arch}) and {target} was "
            "asked for; take soc_model and arch of one row of config/socs.yaml"
        )
    wanted = GraphSettings(target.vtcm_mb, OPTIMIZATION_LEVEL)
    for name, settings in binary.settings.items():
        if settings != wanted:
            raise SnapbakeError(
                f"{path}: the graph {name} has {settings.vtcm_mb} MiB of VTCM and optimisation "
                f"level {settings.optimization_level}; {wanted.vtcm_mb} MiB and level "
                f"{wanted.optimization_level} were asked for"
            )
