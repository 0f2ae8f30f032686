"""Functions that run in a process of their own, because the vendor's code in them can crash."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from snapbake.errors import SnapbakeError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_LAST_LINES: Final = 4
_LAST_LINE_LENGTH: Final = 300
# A line that QNN's thread library prints whenever it is loaded.
_NOISE: Final = "# LIBNATIVE:"
_BOOT: Final = """\
import sys
sys.path[:] = {path!r}
from snapbake.child_process import serve
serve({descriptor})
"""
# Of <sys/prctl.h>: the signal to get when the thread that started this process ends.
_PR_SET_PDEATHSIG: Final = 1
# How long a process that closed its connection may take to end, in seconds.
_DYING_TIME: Final = 30.0


class ChildDiedError(Exception):
    """A child process that ended before it answered.

    Its text completes a sentence that begins with who the child was: "was killed by SIGSEGV; its
    last words: ...".
    """


class Child:
    """A fresh Python process that calls functions one after the other.

    What is cached in it (a loaded library, a context) stays until `close`. Standard output and
    error of the child go to a temporary file, whose end `last_words` gives.
    """

    def __init__(self) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="snapbake.", suffix=".log")  # noqa: SIM115
        self._connection, far_end = multiprocessing.Pipe()
        # Not a fork, which would inherit the locks of threads that it has not, and not
        # multiprocessing.Process, which would import the caller's main program again.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(path=sys.path, descriptor=far_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[far_end.fileno()],
        )
        far_end.close()

    def call(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Return `function(*args, **kwargs)`, computed in the child.

        The function must be importable by its name; arguments and result must pickle. What it
        raises is raised here. Raises ChildDiedError when the child ends instead of answering.
        """
        try:
            self._connection.send((function, args, kwargs))
            good, answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            death, words = self._cause_of_death(), self.last_words()
            raise ChildDiedError(f"{death}; its last words: {words}" if words else death) from error
        if not good:
            raise answer
        return answer

    def last_words(self) -> str:
        """Return the last lines that the child wrote, joined by " | "; "" when there is none."""
        with open(self._log.name, "rb") as stream:  # noqa: PTH123
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 65536))
            text = stream.read().decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        told = [line[:_LAST_LINE_LENGTH] for line in lines if line and not line.startswith(_NOISE)]
        return " | ".join(told[-_LAST_LINES:])

    def close(self) -> None:
        """End the child at once; everything that it was asked for has been answered."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _cause_of_death(self) -> str:
        try:
            code = self._process.wait(_DYING_TIME)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return f"was killed by {name} (most often because the memory was full)"
        return f"was killed by {name}"


def call_in_child(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Return `function(*args, **kwargs)`, computed in a child process of its own (see Child)."""
    with Child() as child:
        return child.call(function, *args, **kwargs)


def serve(descriptor: int) -> None:
    """Answer the calls that come in through a connection's descriptor; ends with the parent."""
    if sys.platform == "linux":
        # Or a long call would go on for minutes after its caller was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(descriptor)
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            # Without the interpreter's teardown: QNN's libraries are known to crash in theirs.
            os._exit(0)
        try:
            answer = (True, function(*args, **kwargs))
        except SnapbakeError as error:
            answer = (False, error)
        except Exception as error:
            # A defect: its place would be lost with the child.
            error.add_note("in the child process:\n" + traceback.format_exc())
            answer = (False, error)
        connection.send(answer)
