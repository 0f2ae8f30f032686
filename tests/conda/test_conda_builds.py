"""Builds with an environment for every rule, by the real programs and a tiny model."""

import importlib.util
import re
import subprocess
from dataclasses import replace

import pytest

from offline_conda import Conda
from tiny_build import CONTEXT, RESULTS, make_tiny_build
from workflow_copy import ROOT, Result, Workflow

pytestmark = pytest.mark.slow


def rules_by_environment() -> dict[str, set[str]]:
    """Map each file of envs/ to the rules that name it."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "rules").glob("*.smk"):
        for rule in re.split(r"^rule ", path.read_text(), flags=re.M)[1:]:
            environment = re.search(r'"\.\./envs/(\w+)\.yaml"', rule)[1]
            found.setdefault(environment, set()).add(rule.partition(":")[0])
    return found


def planned(text: str) -> dict[str, str]:
    """Map each rule of a dry run to the reasons why it runs."""
    blocks = re.findall(r"^(?:local)?rule (\w+):\n((?: {4}.*\n)+)", text, re.M)
    reasons: dict[str, str] = {}
    for name, block in blocks:
        reason = re.search(r"reason: (.*)", block)
        reasons[name] = reasons.get(name, "") + (reason[1] if reason else "")
    return reasons


@pytest.fixture(scope="module")
def first_run(conda: Conda, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workflow, Result]:
    """A whole build, run by a Snakemake beside which no package of the programs is installed."""
    workflow = make_tiny_build(tmp_path_factory.mktemp("conda_build") / "snapbake")
    python = conda.python(ROOT / "envs" / "report.yaml")
    absent = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in absent.stderr
    alone = replace(workflow, python=str(python))
    result = alone.run("all", *conda.options, PATH=f"{conda.folder / 'bin'}:/usr/bin:/bin")
    assert result.code == 0, result.text
    return workflow, result


@pytest.fixture(scope="module")
def built(first_run: tuple[Workflow, Result]) -> Workflow:
    return first_run[0]


@pytest.fixture(scope="module")
def jobs(first_run: tuple[Workflow, Result]) -> set[str]:
    """The rules that a whole build runs."""
    return set(first_run[1].jobs)


def test_snakemake_and_conda_are_enough(built):
    assert (built.folder / RESULTS / f"c{CONTEXT}/w8a16/sm8650/emulator/accepted.txt").is_file()
    assert (built.folder / "results" / "report.html").stat().st_size > 1_000_000


def test_nothing_runs_twice(built, conda):
    result = built.run("--dry-run", "all", *conda.options, PATH=conda.path)
    assert result.code == 0, result.text
    assert "Nothing to be done" in result.text


@pytest.mark.parametrize(
    ("environment", "others"),
    [
        ("export", set()),
        (
            "graph",
            {
                "prepare_checkpoint",
                "export_onnx",
                "write_htp_weights",
                "select_records",
                "compute_reference",
            },
        ),
        ("report", None),
    ],
)
def test_an_edited_environment_reruns_its_rules(built, jobs, conda, environment, others):
    """And what is made of their files; `others` do not run, which are all but its own when None."""
    own = rules_by_environment()[environment] & jobs
    path = built.folder / "envs" / f"{environment}.yaml"
    text = path.read_text()
    path.write_text(f"{text}# a comment\n")
    try:
        result = built.run("--dry-run", "all", *conda.options, PATH=conda.path)
    finally:
        path.write_text(text)
    assert result.code == 0, result.text
    assert not result.jobs.keys() & (jobs - own if others is None else others)
    because = {
        name
        for name, reasons in planned(result.text).items()
        if f"envs/{environment}.yaml" in reasons or "Software environment" in reasons
    }
    assert because
    assert because <= own <= result.jobs.keys()


def test_a_missing_package_fails_its_rule_and_no_other(built, conda, tmp_path):
    """Although Snakemake's own environment has the package."""
    workflow = built.copy(tmp_path / "snapbake")
    path = workflow.folder / "envs" / "graph.yaml"
    text, count = re.subn(r"      - onnxsim==.*\n", "", path.read_text())
    assert count == 1
    path.write_text(text)
    graphs = [f"onnx/c{CONTEXT}.{step}.decode.onnx" for step in ("static", "simplified")]
    targets = [f"{RESULTS}/{name}" for name in (*graphs, f"htp/c{CONTEXT}.decode.onnx")]
    result = workflow.run(*targets, *conda.options, PATH=conda.path)
    assert result.code == 1
    assert result.jobs.keys() == {"freeze_shapes", "simplify_graph", "adapt_graph"}
    assert set(re.findall(r"^Error in rule (\w+):", result.text, re.M)) == {"simplify_graph"}
    assert "2 of 3 steps" in result.text
    log = f"logs/simplify_graph/tiny/c{CONTEXT}/decode.log"
    last = result.text.splitlines()[-1]
    assert last == f"ModuleNotFoundError: No module named 'onnxsim' ({log})"
    assert importlib.util.find_spec("onnxsim")
