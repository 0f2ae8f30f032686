"""Writing the files of a bundle."""

import shutil
from pathlib import Path

from snapbake.files import atomic_path

_EXECUTABLE = 0o111


def copy_file(source: Path, target: Path, executable: bool = False) -> None:
    """Copy the bytes of a file; its mode is a new file's, or one that can be executed."""
    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)
    _set_mode(target, executable)


def write_text(path: Path, text: str, executable: bool = False) -> None:
    """Write text as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    _set_mode(path, executable)


def _set_mode(path: Path, executable: bool) -> None:
    if executable:
        path.chmod(path.stat().st_mode | _EXECUTABLE)
