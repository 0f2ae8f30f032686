"""A matrix of real builds on Slurm, each rule in an environment of its own."""

import re

import pytest
from slurm_node import SlurmNode
from slurm_runs import PROFILE

from offline_conda import Conda
from snapbake.bundle_check import verify_bundle
from snapbake.files import read_json
from tiny_build import CONTEXT, DATA, make_tiny_build
from tiny_models import make_tiny_model

pytestmark = pytest.mark.slow

MODELS = ("llama", "qwen3")
RECIPES = ("fp16", "w8a16")
TARGETS = ("sm8650", "sm8750")
# What goes to Slurm for a model: the members of a group share an allocation.
ALLOCATIONS = {
    "checkpoint": 1,
    "export": 1,
    "htp": 1,
    "check_onnx": 1,
    "compute_reference": 1,
    "convert_fp16": 1,
    "quantize_graphs": 1,
    "evaluate_recipe": 2,
    "compile_graph": 8,
    "share_weights": 4,
    "emulator": 4,
    "prepare_chat": 1,
    "make_bundle": 4,
}


def test_a_matrix_of_builds_is_accepted(slurm: SlurmNode, conda: Conda, tmp_path):
    workflow = make_tiny_build(tmp_path / "snapbake")
    models = {}
    for name in MODELS:
        folder = make_tiny_model(workflow.folder / "exports" / name, name, layers=1)
        models[name] = {"source": str(folder), "data": str(workflow.folder / DATA)}
    workflow.config = ()
    workflow.configure(models=models, recipes=list(RECIPES), targets=list(TARGETS))

    result = workflow.run("all", *PROFILE, *conda.options, PATH=conda.path)

    assert result.code == 0, result.text
    assert slurm.jobs() == []
    groups = r"group_(checkpoint|export|htp|emulator)_\w+|rule_(\w+)"
    found = re.findall(rf"\(log: \S*/slurm_logs/(?:{groups})/", result.text)
    submitted = [group or rule for group, rule in found]
    expected = {name: count * len(MODELS) for name, count in ALLOCATIONS.items()}
    assert {name: submitted.count(name) for name in expected} == expected
    assert not {"accept_target", "write_report"} & set(submitted), "they run where Snakemake does"
    for model in MODELS:
        for recipe in RECIPES:
            for target in TARGETS:
                folder = workflow.folder / "results" / model / f"c{CONTEXT}" / recipe / target
                assert read_json(folder / "emulator" / "verify.json")["accepted"]
                assert verify_bundle(folder / "bundle", target).soc == target
    assert (workflow.folder / "results" / "report.html").is_file()
