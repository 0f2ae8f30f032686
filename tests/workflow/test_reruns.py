"""What makes which rules run again, and that nothing else does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from workflow_copy import Workflow, copy_workflow

MODEL = "results/smollm2-135m"
CHIP = {"compile_graph", "share_weights", "run_emulator", "verify_target", "accept_target"}
REPORT = {"draw_report", "write_report"}
# What is made of the graphs that were checked, for both recipes.
AFTER_CHECK = {"convert_fp16", "quantize_graphs", "evaluate_recipe"} | CHIP | REPORT


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Workflow:
    """A finished build; each test leaves it as it was."""
    workflow = copy_workflow(tmp_path_factory.mktemp("built") / "snapbake")
    result = workflow.run("all")
    assert result.code == 0, result.text
    return workflow


@contextmanager
def changed(path: Path, text: str | None) -> Iterator[None]:
    """Give a file another text, or take it away (None), and bring it back afterwards."""
    kept = path.with_name(f"{path.name}.kept")
    shutil.copy2(path, kept)
    try:
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        yield
    finally:
        kept.replace(path)


def test_nothing_runs_twice(built):
    result = built.run("all")
    assert result.code == 0
    assert result.jobs == {}
    assert "Nothing to be done" in result.text
    assert (built.folder / "results" / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize(
    "name",
    [
        "config/data/instructions.json",
        "config/config.yaml",
        "scripts/quantize_graphs.py",
        "scripts/snapbake/files.py",
        "envs/graph.yaml",
        f"{MODEL}/onnx/model.onnx_data",
        f"{MODEL}/c512/w8a16/weights.data",
    ],
)
def test_a_touched_file_changes_nothing(built, name):
    os.utime(built.folder / name)
    assert built.plan() == {}


@pytest.mark.parametrize(
    ("name", "reruns"),
    [
        ("scripts/accept_target.py", {"accept_target"}),
        ("scripts/verify_target.py", {"verify_target", "accept_target"} | REPORT),
        ("scripts/share_weights.py", {"share_weights"} | REPORT),
        ("scripts/compile_graph.py", CHIP | REPORT),
        ("scripts/check_onnx.py", {"check_onnx"} | REPORT),
        ("scripts/convert_fp16.py", AFTER_CHECK - {"quantize_graphs"}),
        ("scripts/write_torch_weights.py", set()),
        ("scripts/write_dlc.py", set()),
        ("scripts/snapbake/workflow_config.py", set()),
        ("scripts/snapbake/simplify.py", {"simplify_graph", "check_onnx"} | REPORT),
        ("envs/report.yaml", REPORT),
        ("report/captions/size.rst", {"write_report"}),
    ],
)
def test_an_edited_line_reruns_what_uses_it(built, name, reruns):
    path = built.folder / name
    with changed(path, path.read_text() + "# a comment\n"):
        assert built.plan().keys() == reruns


def test_a_deleted_binary_is_made_again_and_nothing_else(built):
    with changed(built.folder / MODEL / "c512" / "fp16" / "sm8650" / "context.bin", None):
        assert built.plan() == {"share_weights": 1, "draw_report": 1, "write_report": 1}


def test_a_new_chip_compiles_runs_and_verifies_only(built):
    plan = built.plan("--config", "targets=[sm8650,sm8750]")
    assert plan == {
        "compile_graph": 4,
        "share_weights": 2,
        "run_emulator": 2,
        "verify_target": 2,
        "accept_target": 2,
        "draw_report": 1,
        "write_report": 1,
    }


def test_a_new_context_exports_nothing(built):
    plan = built.plan("--config", "contexts=[256,512]")
    assert not {"prepare_checkpoint", "export_onnx", "write_htp_weights"} & plan.keys()
    assert (plan["adapt_graph"], plan["compile_graph"]) == (2, 4)


def test_a_limit_is_judged_anew(built):
    path = built.folder / "config" / "recipes.yaml"
    with changed(path, path.read_text().replace("kl_divergence: 0.03", "kl_divergence: 0.02")):
        assert built.plan() == {
            "verify_target": 1,
            "accept_target": 1,
            "draw_report": 1,
            "write_report": 1,
        }


def test_another_seed_chooses_records_and_keeps_the_graphs(built):
    plan = built.plan("--config", "calibration={seed: 7}")
    assert plan["select_records"] == 1
    assert not {"export_onnx", "simplify_graph", "adapt_graph"} & plan.keys()


def test_a_missed_limit_fails_the_build_and_keeps_the_report(workflow):
    (workflow.folder / "refuse").write_text("accept_target")
    result = workflow.run("all")
    assert result.code == 1
    assert (workflow.folder / "results" / "report.html").is_file()
    assert (workflow.folder / MODEL / "c512" / "fp16" / "sm8650" / "context.bin").is_file()
    assert result.text.splitlines()[-2:] == [
        f"error: accept_target was told to fail (logs/accept_target/smollm2-135m/c512/{recipe}"
        "/sm8650.log)"
        for recipe in ("fp16", "w8a16")
    ], "what went wrong is the last that is said"
    assert workflow.plan().keys() == {"accept_target"}


def test_a_refused_graph_stops_the_build(workflow):
    (workflow.folder / "refuse").write_text("check_onnx")
    result = workflow.run("all")
    assert result.code == 1
    assert not (workflow.folder / MODEL / "c512" / "fp16").exists()
    assert not (workflow.folder / "results" / "report.html").exists()


def test_programs_run_with_snakemakes_own_python(workflow, tmp_path, monkeypatch):
    """Also when its environment was not activated and another Python comes first on PATH."""
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:/usr/bin:/bin")
    result = workflow.run(f"{MODEL}/checkpoint.json")
    assert result.code == 0, result.text
