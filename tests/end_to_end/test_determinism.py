"""The same input gives the same bytes, in another folder and after a build was cut off."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tiny_build import CONTEXT, RECIPES, RESULTS, files_below, make_tiny_build, target
from workflow_copy import Workflow, end_group

pytestmark = pytest.mark.slow

BINARIES = [target(recipe, "context.bin") for recipe in RECIPES]
# What a build of the binaries must have made, apart from much else.
MADE = [
    *BINARIES,
    *(target(recipe, "context.json") for recipe in RECIPES),
    *(target(recipe, f"{graph}.bin") for recipe in RECIPES for graph in ("prefill", "decode")),
    *(f"{RESULTS}/c{CONTEXT}/{recipe}/encodings.json" for recipe in RECIPES),
]

EXPORT = [f"{RESULTS}/onnx/{name}" for name in ("model.onnx", "model.onnx_data")]
SHARED = [target("w8a16", name) for name in ("context.bin", "context.json")]
EMULATED = [
    target("fp16", f"emulator/{name}")
    for name in (
        *("outputs.npz", "prefill/Result_0/logits.raw", "decode/Result_0/logits.raw"),
        *("prefill/input_list.txt", "decode/input_list.txt"),
    )
]
T = TypeVar("T")


def test_two_builds_in_two_folders_are_equal(built, tmp_path):
    """Every file of the second build, from the checkpoint to the binaries."""
    other = make_tiny_build(tmp_path / "another" / "place" / "of another name")
    result = other.run(*BINARIES)
    assert result.code == 0, result.text
    made = {name for name in files_below(other.folder) if name.startswith("results/")}
    assert made >= set(MADE)
    different = [
        name
        for name in sorted(made)
        if (other.folder / name).read_bytes() != (built.folder / name).read_bytes()
    ]
    assert different == []


def descendants(parent: int) -> list[int]:
    """Return the ids of all processes below a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            above = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(above), []).append(int(entry.name))
    found = [parent]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def find_program(snakemake: int, name: str) -> int | None:
    """Return the id of the process `python scripts/<name>.py` of a build, None before it runs."""
    for pid in descendants(snakemake):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:2] == [f"scripts/{name}.py".encode()]:
                return pid
    return None


def hidden(folder: Path) -> list[Path]:
    """Return what programs write before they give it its name."""
    return list(folder.rglob(".*"))


def wait_for(find: Callable[[], T]) -> T:
    """Wait until something is found and return it."""
    ends = time.monotonic() + 300
    while not (found := find()):
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def interrupt_like_a_terminal(snakemake: int, _: int) -> None:
    """Ctrl-C: Snakemake and its jobs get the signal."""
    os.killpg(snakemake, signal.SIGINT)


def kill_like_a_full_memory(_: int, program: int) -> None:
    os.kill(program, signal.SIGKILL)


def kill_like_a_power_cut(snakemake: int, _: int) -> None:
    os.killpg(snakemake, signal.SIGKILL)


@pytest.mark.parametrize(
    ("rule", "outputs", "stop"),
    [
        ("export_onnx", EXPORT, kill_like_a_full_memory),
        ("share_weights", SHARED, interrupt_like_a_terminal),
        ("run_emulator", EMULATED, kill_like_a_power_cut),
    ],
)
def test_an_interrupted_build_goes_on(copy_of_built: Workflow, built, rule, outputs, stop):
    """The next run makes what is missing, and its files are those of an undisturbed build."""
    results = copy_of_built.folder / "results"
    for name in outputs:
        (copy_of_built.folder / name).unlink()
    process = copy_of_built.start(outputs[0])
    try:
        program = wait_for(lambda: find_program(process.pid, rule))
        wait_for(lambda: hidden(results))
        time.sleep(0.3)  # it has begun to write, and goes on for seconds
        jobs = descendants(process.pid)
        stop(process.pid, program)
        text, _ = process.communicate(timeout=60)
        assert process.returncode != 0, text
        wait_for(lambda: not any(map(is_alive, jobs)))
    finally:
        end_group(process)
    assert not any((copy_of_built.folder / name).exists() for name in outputs), text
    assert (hidden(results) == []) == (stop is interrupt_like_a_terminal)
    if stop is kill_like_a_power_cut:
        locked = copy_of_built.run(outputs[0])
        assert locked.code != 0
        assert "--unlock" in locked.text, "Snakemake says what to do"
        assert copy_of_built.run("--unlock").code == 0

    result = copy_of_built.run(outputs[0])
    assert result.code == 0, result.text
    assert result.jobs == {rule: 1}
    assert hidden(results) == [], "what was half-written is gone"
    different = [
        name
        for name in outputs
        if (copy_of_built.folder / name).read_bytes() != (built.folder / name).read_bytes()
    ]
    assert different == []
