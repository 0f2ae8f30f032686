"""What the jobs of a build wrote into their logs."""

from pathlib import Path


def find_errors(folder: Path, since: float) -> list[tuple[Path, str]]:
    """Return each log below `folder` that ends in an error, with the line that says it.

    Only logs written at `since` (seconds since the epoch) or later count. An error is a last line
    that begins with "error: ", as `snapbake.errors.run_program` prints it.
    """
    found = []
    for path in sorted(folder.rglob("*.log")):
        if path.stat().st_mtime >= since:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines and lines[-1].startswith("error: "):
                found.append((path, lines[-1]))
    return found
