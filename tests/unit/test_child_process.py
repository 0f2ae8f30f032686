"""A function in a child process: its answers, its errors, its death."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snapbake.child_process import Child, ChildDiedError, call_in_child
from snapbake.errors import SnapbakeError

SCRIPTS = Path(__file__).parents[2] / "scripts"


def double(number: int) -> int:
    return 2 * number


def refuse() -> None:
    raise SnapbakeError("the file is missing; make it")


def stumble() -> None:
    raise KeyError("tensor")


def say_and_die(words: str, number: int) -> None:
    os.write(1, f"{words}\n".encode())
    os.kill(os.getpid(), number)


def leave(code: int) -> None:
    os._exit(code)


def process_id() -> int:
    return os.getpid()


def test_one_child_answers_several_calls() -> None:
    with Child() as child:
        assert child.call(double, 4) == 8
        assert child.call(process_id) == child.call(process_id) != os.getpid()


def test_errors_come_back_as_they_were_raised() -> None:
    with Child() as child:
        with pytest.raises(SnapbakeError, match=r"^the file is missing; make it$"):
            child.call(refuse)
        with pytest.raises(KeyError) as caught:
            child.call(stumble)
        assert "in stumble" in "".join(caught.value.__notes__)
        assert child.call(double, 1) == 2


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_signal_is_named_with_the_last_words(number: signal.Signals) -> None:
    with pytest.raises(ChildDiedError, match=f"was killed by {number.name}.*words: out of luck"):
        call_in_child(say_and_die, "out of luck", number)


def test_an_exit_code_is_named() -> None:
    with pytest.raises(ChildDiedError, match=r"^ended with exit code 3$"):
        call_in_child(leave, 3)


def test_nothing_of_the_child_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildDiedError):
        call_in_child(say_and_die, "noise", signal.SIGSEGV)
    assert capfd.readouterr() == ("", "")


def test_a_killed_parent_takes_its_child_along() -> None:
    program = (
        f"import sys, time; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from snapbake.child_process import Child\n"
        "child = Child(); print(child.call(__import__('os').getpid), flush=True)\n"
        "child.call(time.sleep, 600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(child)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
