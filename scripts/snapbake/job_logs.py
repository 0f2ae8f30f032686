"""What the jobs of a build wrote into their logs."""

import re
from pathlib import Path

# The last line of a program that refused, or of Python when something was raised that no program
# speaks about, as a package that is missing in a rule's environment.
_ERROR = re.compile(r"error: |([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception): ")


def find_errors(folder: Path, since: float) -> list[tuple[Path, str]]:
    """Return each log below `folder` that ends in an error, with the line that says it.

    Only logs written at `since` (seconds since the epoch) or later count. An error is a last line
    that begins with "error: ", as `snapbake.errors.run_program` prints it, or ends a traceback.
    """
    found = []
    for path in sorted(folder.rglob("*.log")):
        if path.stat().st_mtime >= since:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines and _ERROR.match(lines[-1]):
                found.append((path, lines[-1]))
    return found
