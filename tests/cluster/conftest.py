"""One Slurm for the tests of this folder."""

import os
from collections.abc import Iterator

import pytest
from slurm_node import SlurmNode, missing


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    reason = missing()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    with SlurmNode(tmp_path_factory.mktemp("slurm") / "node", slots=4) as node:
        yield node
