"""What a failed job does to a build, with stand-ins for the programs."""

MODEL = "results/smollm2-135m"


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
