"""Twenty binaries of one model; measure_scale.py does the same with two hundred."""

import pytest
from measure_scale import MODEL_BINARIES, measure
from slurm_node import SlurmNode

pytestmark = pytest.mark.slow

# checkpoint and select_records, export and what is frozen and simplified, the weights and the
# adapted graphs share an allocation each; then the check and one of either recipe.
SHARED = {"jobs": 13, "allocations": 6}


def test_what_many_jobs_share_is_built_once(slurm: SlurmNode, tmp_path):
    scale = measure(tmp_path / "snapbake", MODEL_BINARIES, 0.5, slurm.slots, on_slurm=True)
    print(scale)
    assert scale.jobs == SHARED["jobs"] + MODEL_BINARIES
    assert scale.allocations == SHARED["allocations"] + MODEL_BINARIES
    assert scale.plan < 30
