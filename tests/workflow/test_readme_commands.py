"""Every snakemake command of the README, as a dry run where it says what would run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from offline_conda import install_conda
from workflow_copy import ROOT, Workflow, copy_workflow

BLOCKS = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
LINES = "".join(BLOCKS).replace("\\\n", " ").splitlines()
COMMANDS = [
    part.strip()
    for line in LINES
    for part in re.split(r"&&|\|", line)
    if part.strip().startswith("snakemake ")
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Workflow:
    """A copy of the workflow with the files that the README's examples name."""
    workflow = copy_workflow(tmp_path_factory.mktemp("readme") / "snapbake")
    for name, text in (
        ("export/config.json", "{}"),
        ("adapter/adapter_config.json", "{}"),
        ("base/config.json", "{}"),
        ("train.json", "[]"),
        ("LLaMA-Factory/data/dataset_info.json", '{"my_dataset": {"file_name": "my.json"}}'),
        ("LLaMA-Factory/data/my.json", "[]"),
    ):
        path = workflow.folder / "path" / "to" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    install_conda(workflow.folder / "conda")
    return workflow


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_that_snakemake_takes(clone, command):
    if "--rulegraph" not in command:
        command = command.replace("snakemake", "snakemake --dry-run", 1)
    own_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([own_folder, f"{clone.folder}/conda/bin", *os.get_exec_path()])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=clone.folder,
        env={**os.environ, "NO_COLOR": "1", "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "digraph" in done.stdout or "Job stats" in done.stdout
