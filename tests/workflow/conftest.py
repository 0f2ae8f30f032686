"""Copies of the workflow for the tests of this folder."""

import pytest

from workflow_copy import Workflow, copy_workflow


@pytest.fixture
def workflow(tmp_path) -> Workflow:
    return copy_workflow(tmp_path / "snapbake")


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Workflow:
    """A copy for dry runs, shared by the tests that change nothing in it."""
    return copy_workflow(tmp_path_factory.mktemp("pristine") / "snapbake")
