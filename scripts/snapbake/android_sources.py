"""Which files of android/ go into a bundle, for the workflow and for its program alike."""

from pathlib import Path
from typing import Final

from snapbake.errors import SnapbakeError

_PATTERNS: Final = ("CMakeLists.txt", "*.cpp", "*.h", "java/**/*.java", "kotlin/**/*.kt")


def android_sources(folder: Path) -> list[str]:
    """Return the sources in `folder` as sorted paths relative to it, with / between the parts.

    What else lies there, such as an editor's files or a build, is left out. Raises SnapbakeError
    when it has no CMakeLists.txt.
    """
    if not (folder / "CMakeLists.txt").is_file():
        raise SnapbakeError(f"{folder} has no CMakeLists.txt; give the folder android/ of snapbake")
    found = [path for pattern in _PATTERNS for path in folder.glob(pattern) if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in found)
