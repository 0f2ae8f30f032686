"""Errors that are meant to be read by people, and the wrapper that prints them."""

import sys
from collections.abc import Callable


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
        print(f"error: {error.strerror}{place}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
