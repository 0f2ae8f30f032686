"""Errors that are meant to be read by people, and the wrapper that prints them."""

import errno
import sys
from collections.abc import Callable

# What a person may do about an error of the operating system, by its number.
_WAYS_OUT = dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT),
    "; free some space or move the results folder with `snakemake --directory`",
)


class SnapbakeError(Exception):
    """A mistake or a limit that a person can act on.

    The message is one sentence: what was found, where, and what to do about it.
    """


def run_program(main: Callable[[], None]) -> None:
    """Run a command-line program and end the process with its exit code.

    A `SnapbakeError` or a full disk becomes one line on stderr and exit code 1; anything else is
    a defect of snapbake and keeps its traceback.
    """
    try:
        main()
    except SnapbakeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno is None:
            raise
        place = f" ({error.filename})" if error.filename else ""
        way_out = _WAYS_OUT.get(error.errno, "")
        print(f"error: {error.strerror}{place}{way_out}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
