"""MANIFEST.json of a bundle: every file of it, what it is for and what it was made of."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from snapbake.android_build import ABI
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, sha256_file

NAME: Final = "MANIFEST.json"
FORMAT: Final = 1
BINARY: Final = "context.bin"
CONFIG: Final = "genie_config.json"
EXTENSIONS: Final = "htp_backend_ext_config.json"
TOKENIZER: Final = "tokenizer.json"
TEMPLATE: Final = "prompt_template.json"
ANDROID: Final = "android"
RUNNER: Final = f"{ANDROID}/runner.json"
PROGRAMS: Final = f"{ANDROID}/{ABI}"


@dataclass(frozen=True)
class Manifest:
    """The parts of a manifest that a bundle is checked by.

    `files` maps paths in the bundle to (bytes, SHA-256). `graphs` is that of context.json: by role
    the graph's name and its inputs and outputs. `ndk` is the version of the Android NDK that
    built the programs in the bundle, None where there are none.
    """

    soc: str
    part: str
    soc_model: int
    arch: int
    vtcm_mb: int
    context: int
    qairt_build: str
    files: dict[str, tuple[int, str]]
    graphs: dict[str, Any]
    ndk: str | None


def describe_file(path: Path) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of a file, as a manifest has them."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a bundle; raise SnapbakeError when it is none of this format."""
    if not folder.is_dir():
        raise SnapbakeError(f"{folder} is not a folder; give the folder of a bundle")
    path = folder / NAME
    if not path.is_file():
        raise SnapbakeError(f"{folder} has no {NAME}, so it is no bundle or lost it; copy it again")
    content = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise SnapbakeError(
                f"{path} has the format {content['format']!r} and this snapbake reads {FORMAT}; "
                "use the snapbake that made it"
            )
        target = content["target"]
        return Manifest(
            soc=target["soc"],
            part=target["part"],
            soc_model=target["soc_model"],
            arch=target["arch"],
            vtcm_mb=target["vtcm_mb"],
            context=content["context"],
            qairt_build=content["qairt"]["build"],
            files={
                name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()
            },
            graphs=content["graphs"],
            ndk=None if content["android"] is None else content["android"]["ndk"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SnapbakeError(
            f"{path} is not whole (at {error}); copy the bundle again from where it was built"
        ) from error
