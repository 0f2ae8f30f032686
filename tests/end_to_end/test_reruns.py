"""What makes which rules run again after a real build, and that nothing else does."""

import json
import os
import re
from modulefinder import ModuleFinder
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from default_jobs import EVERY_JOB
from tiny_build import DATA, MODEL, changed, target

pytestmark = pytest.mark.slow

EVERY_RULE = set(EVERY_JOB)
REPORT = {"draw_report", "write_report"}
ACCEPT = {"accept_target", "make_bundle"}
JUDGE = {"verify_target"} | ACCEPT | REPORT
SHIP = {"share_weights", "make_bundle"} | REPORT
CHIP = {"compile_graph", "share_weights", "run_emulator", "run_genie"} | JUDGE
# What is made of the graphs that were checked, for both recipes.
AFTER_CHECK = {"convert_fp16", "quantize_graphs", "evaluate_recipe"} | CHIP
# What reads records of the data, and what is made of that.
AFTER_RECORDS = {"check_onnx", "compute_reference"} | AFTER_CHECK


def test_a_second_run_has_nothing_to_do(built):
    result = built.run("all")
    assert result.code == 0
    assert result.jobs == {}
    assert "Nothing to be done" in result.text


def test_touching_every_file_changes_nothing(copy_of_built):
    """The model, its data, programs, configuration, environments and everything that was made."""
    for path in copy_of_built.folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path)
    assert copy_of_built.plan() == {}


def test_a_deleted_binary_is_made_again_and_nothing_else(copy_of_built):
    binary = copy_of_built.folder / target("w8a16", "context.bin")
    before = binary.read_bytes()
    binary.unlink()
    result = copy_of_built.run("all")
    assert result.code == 0, result.text
    assert result.jobs == dict.fromkeys(SHIP, 1)
    assert binary.read_bytes() == before
    assert copy_of_built.plan() == {}


def test_a_new_chip_compiles_runs_and_verifies_only(built):
    assert built.plan("--config", "targets=[sm8650,sm8750]") == {
        "compile_graph": 4,
        "share_weights": 2,
        "run_emulator": 2,
        "run_genie": 2,
        "verify_target": 2,
        "accept_target": 2,
        "make_bundle": 2,
        "draw_report": 1,
        "write_report": 1,
    }


def test_a_new_context_exports_nothing(built):
    plan = built.plan("--config", "contexts=[64,128]")
    assert not {"prepare_checkpoint", "export_onnx", "write_htp_weights"} & plan.keys()
    assert (plan["adapt_graph"], plan["freeze_shapes"], plan["compile_graph"]) == (2, 2, 4)


def test_a_limit_is_judged_anew(built):
    path = built.folder / "config" / "recipes.yaml"
    with changed(path, path.read_text().replace("kl_divergence: 0.03", "kl_divergence: 0.02")):
        assert built.plan() == {
            "verify_target": 1,
            "accept_target": 1,
            "make_bundle": 1,
            "draw_report": 1,
            "write_report": 1,
        }


def test_another_seed_chooses_records_and_keeps_the_graphs(built):
    path = built.folder / "config" / "config.yaml"
    with changed(path, path.read_text().replace("seed: 1", "seed: 2")):
        assert built.plan().keys() == {"select_records"} | AFTER_RECORDS


def test_changed_data_chooses_records_and_keeps_the_graphs(built):
    records = json.loads((built.folder / DATA).read_text())
    records[0]["output"] += " And so on."
    with changed(built.folder / DATA, json.dumps(records)):
        assert built.plan().keys() == {"select_records"} | AFTER_RECORDS


def test_a_changed_weight_reruns_everything(built):
    """The file keeps its path, its size and all of its tensors but one."""
    path = built.folder / MODEL / "model.safetensors"
    weights, size = load_file(path), path.stat().st_size
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] += 0.25
    with changed(path, b""):
        save_file(weights, path, metadata={"format": "pt"})
        assert path.stat().st_size == size
        assert built.plan().keys() == EVERY_RULE


def test_a_file_that_shapes_nothing_is_no_input(built):
    log = built.folder / MODEL / "trainer_log.jsonl"
    log.write_text("{}\n")
    try:
        assert built.plan() == {}
    finally:
        log.unlink()


@pytest.mark.parametrize(
    ("name", "reruns"),
    [
        ("scripts/accept_target.py", ACCEPT),
        ("scripts/verify_target.py", JUDGE),
        ("scripts/share_weights.py", SHIP),
        ("scripts/compile_graph.py", CHIP),
        ("scripts/run_emulator.py", {"run_emulator"} | JUDGE),
        ("scripts/run_genie.py", {"run_genie"} | JUDGE),
        ("scripts/prepare_chat.py", {"prepare_chat", "run_genie"} | JUDGE),
        ("scripts/make_bundle.py", {"make_bundle"}),
        ("scripts/check_onnx.py", {"check_onnx"} | AFTER_CHECK),
        ("scripts/convert_fp16.py", AFTER_CHECK - {"quantize_graphs"}),
        ("scripts/prepare_checkpoint.py", EVERY_RULE),
        ("scripts/write_torch_weights.py", set()),
        ("scripts/write_dlc.py", set()),
        ("scripts/net_run.py", set()),
        ("scripts/snapbake/files.py", EVERY_RULE),
        ("scripts/snapbake/decoding.py", {"prepare_chat"} | AFTER_RECORDS),
        ("scripts/snapbake/genie_verdict.py", JUDGE),
        ("scripts/snapbake/simplify.py", {"simplify_graph", "check_onnx"} | AFTER_CHECK),
        ("scripts/snapbake/weight_sharing.py", SHIP),
        ("scripts/snapbake/calibration.py", {"select_records", "prepare_chat"} | AFTER_RECORDS),
        ("scripts/snapbake/workflow_config.py", set()),
        ("envs/report.yaml", REPORT),
        ("report/captions/size.rst", {"write_report"}),
    ],
)
def test_an_edited_line_reruns_what_uses_it(built, name, reruns):
    path = built.folder / name
    with changed(path, path.read_text() + "# a comment\n"):
        assert built.plan().keys() == reruns


@pytest.fixture(scope="module")
def declared(built) -> dict[str, set[str]]:
    """For each rule the files in scripts/ that are its inputs."""
    text = built.run("--dry-run", "--forceall", "all").text
    found: dict[str, set[str]] = {}
    for name, inputs in re.findall(r"^(?:local)?rule (\w+):\n    input: (.*)$", text, re.M):
        found[name] = {path for path in inputs.split(", ") if path.startswith("scripts/")}
    return found


def reachable(folder: Path, program: str) -> set[str]:
    """Return the files in scripts/ that a program imports or runs as a module, by its byte code."""
    finder = ModuleFinder(path=[str(folder / "scripts")])
    finder.run_script(str(folder / "scripts" / f"{program}.py"))
    while True:
        places = (module.__file__ for module in finder.modules.values())  # type: ignore[attr-defined]
        files = {Path(place) for place in places if place}
        texts = "".join(path.read_text() for path in files)
        named = set(re.findall(r'"(snapbake\.\w+)"', texts)) - finder.modules.keys()
        if not named:
            return {str(path.relative_to(folder)) for path in files}
        for name in named:
            finder.import_hook(name)


@pytest.mark.parametrize("rule", sorted(EVERY_RULE - {"write_report"}))
def test_every_module_that_a_rule_uses_is_its_input(built, declared, imported, rule):
    """The inputs are what Python's own tool finds; what was really imported is among them."""
    assert declared[rule] == reachable(built.folder, rule)
    names = set((imported / f"{rule}.txt").read_text().split())
    places = [built.folder / "scripts" / name.replace(".", "/") for name in names]
    files = [place / "__init__.py" if place.is_dir() else f"{place}.py" for place in places]
    assert {str(Path(file).relative_to(built.folder)) for file in files} <= declared[rule]
