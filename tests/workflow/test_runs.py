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


def test_waiting_threads_leave_the_cores_to_other_jobs(workflow, monkeypatch):
    """In PyTorch and numpy, unless whoever runs the workflow wants it otherwise."""
    program = workflow.folder / "scripts" / "prepare_checkpoint.py"
    show = 'Path("seen").write_text(" ".join(map(os.environ.get, NAMES)))'
    names = ("OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT")
    program.write_text(f"{program.read_text()}\nimport os\nNAMES = {names}\n{show}\n")
    for chosen, seen in ((None, "passive 4"), ("active", "active 4")):
        if chosen:
            monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
        result = workflow.run(f"{MODEL}/checkpoint.json", "--forcerun", "prepare_checkpoint")
        assert result.code == 0, result.text
        assert (workflow.folder / "seen").read_text() == seen
