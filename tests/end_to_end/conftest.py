"""One real build of a tiny model for all tests of this folder, and copies of it to change."""

from pathlib import Path

import pytest

from tiny_build import make_tiny_build
from workflow_copy import Result, Workflow

# Python imports a module of this name when it starts. It notes which of snapbake's modules a
# program and its child processes import.
RECORDER = """\
import os
import sys
from pathlib import Path

words = sys.orig_argv[1:2]
if words and Path(words[0]).parent.name == "scripts":
    os.environ["PROGRAM_UNDER_TEST"] = Path(words[0]).stem
program = os.environ.get("PROGRAM_UNDER_TEST")


class Recorder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "snapbake":
            with open(Path(__file__).parent / f"{program}.txt", "a") as stream:
                stream.write(f"{name}\\n")


if program:
    sys.meta_path.insert(0, Recorder)
"""


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each program of the build: what it imported from snapbake."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "sitecustomize.py").write_text(RECORDER)
    return folder


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory, imported: Path) -> tuple[Workflow, Result]:
    """The folder of a whole build, and how its run ended."""
    workflow = make_tiny_build(tmp_path_factory.mktemp("first") / "snapbake")
    return workflow, workflow.run("all", PYTHONPATH=str(imported))


@pytest.fixture(scope="session")
def built(first_run: tuple[Workflow, Result]) -> Workflow:
    """The folder of a whole build. A test that changes a file in it brings the old one back."""
    workflow, result = first_run
    assert result.code == 0, result.text
    return workflow


@pytest.fixture
def copy_of_built(built: Workflow, tmp_path: Path) -> Workflow:
    """A copy of the whole build that a test may do with what it likes."""
    return built.copy(tmp_path / "snapbake")
