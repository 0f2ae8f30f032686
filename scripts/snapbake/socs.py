"""The systems on chip of config/socs.yaml, and which of them a recipe can be built for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import yaml

from snapbake.errors import SnapbakeError

# The architectures that QAIRT 2.51 compiles for and whose binaries may share weights.
FIRST_ARCH: Final = 73
LAST_ARCH: Final = 85

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "part": (str,),
    "marketing_name": (str, type(None)),
    "soc_model": (int,),
    "arch": (int,),
    "vtcm_mb": (int,),
    "fp16": (bool,),
    "matmul_16x16": (bool, type(None)),
    "graph_limit_mb": (int, type(None)),
}
_TYPE_NAMES: Final = {str: "text", int: "a whole number", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Soc:
    """A system on chip; config/socs.yaml explains the fields.

    `name` is the target's name in the configuration, the part in lower case. Sizes are in MiB.
    `matmul_16x16` and `graph_limit_mb` are None where they are not known.
    """

    name: str
    part: str
    marketing_name: str | None
    soc_model: int
    arch: int
    vtcm_mb: int
    fp16: bool
    matmul_16x16: bool | None
    graph_limit_mb: int | None

    @property
    def title(self) -> str:
        """The chip as a person knows it: "SM8650 (Snapdragon 8 Gen 3, v75)"."""
        names = (self.marketing_name, f"v{self.arch}")
        return f"{self.part} ({', '.join(filter(None, names))})"


def load_socs(path: Path) -> dict[str, Soc]:
    """Read the table of chips, by target name in the file's order.

    Raises SnapbakeError that names the row and the key when something is missing or wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SnapbakeError(f"{path} cannot be read: {error.strerror}; restore it") from error
    except yaml.YAMLError as error:
        raise SnapbakeError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SnapbakeError(f"{path} must map names of targets to their properties")
    return {str(name): _read_row(path, str(name), row) for name, row in content.items()}


def _read_row(path: Path, name: str, row: Any) -> Soc:
    if not isinstance(row, dict):
        raise SnapbakeError(f"{path}: {name} must map {', '.join(_TYPES)} to values")
    for key in row:
        if key not in _TYPES:
            raise SnapbakeError(f"{path}: {name} has the unknown key {key}; remove it")
    for key, types in _TYPES.items():
        if key not in row:
            raise SnapbakeError(f"{path}: {name} has no {key}; add it")
        # Not isinstance: true is an int to Python.
        if type(row[key]) not in types:
            allowed = " or ".join(_TYPE_NAMES[each] for each in types)
            raise SnapbakeError(f"{path}: {name} has {key}: {row[key]!r}, which must be {allowed}")
    return Soc(name=name, **{field.name: row[field.name] for field in fields(Soc)[1:]})


def why_refused(soc: Soc, needs_fp16: bool, needs_matmul_16x16: bool) -> str | None:
    """Say in one sentence why a recipe cannot be built for a chip, or return None.

    `needs_fp16` is true for recipes with floating-point graphs, `needs_matmul_16x16` for those
    whose attention multiplies 16-bit activations with a 16-bit KV cache. An unknown capability
    does not refuse.
    """
    if soc.arch < FIRST_ARCH:
        return (
            f"{soc.title} cannot load a binary whose prefill and decode graphs share their "
            f"weights, which needs v{FIRST_ARCH} or later"
        )
    if soc.arch > LAST_ARCH:
        return (
            f"QAIRT 2.51 cannot compile for {soc.title}: it fails to finalise any graph for an "
            f"architecture after v{LAST_ARCH}"
        )
    if needs_fp16 and not soc.fp16:
        return f"{soc.title} does not compute in floating point; choose a quantized recipe"
    if needs_matmul_16x16 and soc.matmul_16x16 is False:
        return (
            f"{soc.title} does not multiply 16-bit activations with each other; choose a recipe "
            "with an 8-bit KV cache"
        )
    return None
