"""Reading and writing files so that nothing half-written is ever taken for whole."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError

_BLOCK = 1 << 22


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends well.

    The file that was written is given the mode that the umask asks for. When the block raises,
    the temporary file is removed and an earlier `path` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON with sorted keys, so that equal content gives equal bytes.

    Raises ValueError for NaN and infinities, which JSON cannot say.
    """
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file; a missing or broken one is named with line and column."""
    require_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SnapbakeError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}; mend or replace the file"
        ) from error
    except UnicodeDecodeError as error:
        raise SnapbakeError(f"{path} is not UTF-8 text; save it as UTF-8") from error


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal, read in blocks of 4 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def require_file(path: Path) -> None:
    """Raise unless `path` is a file that can be read."""
    if not path.exists():
        raise SnapbakeError(f"{path} does not exist; check the path")
    if not path.is_file():
        raise SnapbakeError(f"{path} is not a file; give the path of a file")
    if not os.access(path, os.R_OK):
        raise SnapbakeError(f"{path} cannot be read; check its permissions")


def require_disk_space(folder: Path, needed: int) -> None:
    """Raise when the disk of `folder` has less than `needed` bytes free."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise SnapbakeError(
            f"{folder} needs {_in_words(needed)} of disk space and {_in_words(free)} is free; "
            "free some space or move the results folder with `snakemake --directory`"
        )


def _in_words(size: int) -> str:
    """Return a number of bytes in the unit that says most."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
