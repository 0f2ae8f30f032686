"""Fixtures that every test may use."""

import os
import sys
from pathlib import Path

import pytest

from offline_conda import Conda, install_conda
from tiny_models import make_tiny_model
from workflow_copy import copy_workflow

# An NDK on the machine would make builds and bundles others than the tests expect.
os.environ.pop("ANDROID_NDK_ROOT", None)

FAMILY_NAMES = ("llama", "qwen2", "qwen3")
FIGURES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let cheap tests fail first: units, dry runs, what builds, and the main job last of all."""
    folders = ("unit", "workflow")

    def rank(item: pytest.Item) -> int:
        if item.get_closest_marker("main_job"):
            return len(folders) + 1
        folder = item.path.parent.name
        return folders.index(folder) if folder in folders else len(folders)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print at the end, whatever fails."""
    return pytestconfig.stash.setdefault(FIGURES, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the figures of the main job, so that they are in CI's log."""
    lines: list[str] = config.stash.get(FIGURES, [])
    for number, line in enumerate(lines):
        if number == 0:
            terminalreporter.section("figures of the main job")
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder a family: read them, never write into them."""
    folder = tmp_path_factory.mktemp("tiny")
    return {name: make_tiny_model(folder / name, name) for name in FAMILY_NAMES}


@pytest.fixture(params=FAMILY_NAMES)
def tiny_model(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Path:
    """The folder of a tiny model, one test run a family."""
    return tiny_models[request.param]


@pytest.fixture(scope="session")
def conda(tmp_path_factory: pytest.TempPathFactory) -> Conda:
    """A conda with which the environments of all rules were created, by Snakemake itself."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the environments want Python 3.11, and the channel has what runs the tests")
    folder = tmp_path_factory.mktemp("conda")
    conda = install_conda(folder / "conda")
    workflow = copy_workflow(folder / "snapbake")
    result = workflow.run("all", *conda.options, "--conda-create-envs-only", PATH=conda.path)
    assert result.code == 0, result.text
    return conda
