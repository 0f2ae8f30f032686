"""Mistakes in what a build is given: one sentence, an exit code, and nothing half-written."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snapbake.checkpoint import OUTPUT_FILES
from tiny_build import CONTEXT, DATA, MODEL, RESULTS, files_below, make_tiny_build, target
from workflow_copy import Result, Workflow

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("model=absent/export", "absent/export, does not exist; give the folder"),
        ("contexts=[16]", "contexts has 16, which leaves no past beside a prefill_chunk of 16"),
        ("targts=[sm8650]", "unknown key targts; did you mean targets?"),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_runs(built, tmp_path, config, sentence):
    """More of them are in tests/workflow."""
    elsewhere = Workflow(built.folder, tmp_path, built.config)
    result = elsewhere.run("all", "--config", config)
    assert result.code == 1
    last = result.text.splitlines()[-1]
    assert last.startswith("error: ")
    assert sentence in last
    assert not (tmp_path / "results").exists()


def without_tokenizer(model: Path, _: Path) -> None:
    (model / "tokenizer.json").unlink()


def cut_short(model: Path, _: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def of_an_unknown_family(model: Path, _: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "gpt_neox"}))


def with_broken_data(_: Path, data: Path) -> None:
    data.write_text(data.read_text()[:-20])


def with_binary_data(_: Path, data: Path) -> None:
    data.write_bytes(bytes(range(256)))


def with_few_records(_: Path, data: Path) -> None:
    data.write_text(json.dumps(json.loads(data.read_text())[:30]))


# What is wrong, the rule that says so, what it says.
DAMAGES: list[tuple[Callable[[Path, Path], None], str, str]] = [
    (without_tokenizer, "prepare_checkpoint", "tokenizer.json"),
    (cut_short, "prepare_checkpoint", "model.safetensors"),
    (of_an_unknown_family, "prepare_checkpoint", "gpt_neox"),
    (with_broken_data, "select_records", "is not valid JSON"),
    (with_binary_data, "select_records", "is not UTF-8 text"),
    (with_few_records, "select_records", "30 usable of 30 records"),
]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workflow, Result]:
    """A build of a model for each damage, named after it, up to the choice of records."""
    workflow = make_tiny_build(tmp_path_factory.mktemp("damaged") / "snapbake")
    models = {}
    for damage, _, _ in DAMAGES:
        name = damage.__name__
        model, data = (workflow.folder / "exports" / f"{name}{end}" for end in ("", ".json"))
        shutil.copytree(workflow.folder / MODEL, model)
        shutil.copy(workflow.folder / DATA, data)
        damage(model, data)
        models[name] = {"source": f"exports/{name}", "data": f"exports/{name}.json"}
    workflow.configure(models=models)
    workflow.config = ()
    targets = [f"results/{name}/c{CONTEXT}/calibration/manifest.json" for name in models]
    return workflow, workflow.run(*targets)


@pytest.mark.parametrize(("damage", "rule", "words"), DAMAGES)
def test_a_damaged_input_is_told_in_one_sentence(damaged, damage, rule, words):
    workflow, result = damaged
    assert result.code == 1
    assert "Traceback" not in result.text
    last = result.text.splitlines()[-len(DAMAGES) :]
    (sentence,) = [line for line in last if f"exports/{damage.__name__}" in line]
    assert sentence.startswith("error: ")
    assert words in sentence
    assert f"(logs/{rule}/{damage.__name__}" in sentence

    left = files_below(workflow.folder / "results" / damage.__name__)
    whole = {"checkpoint.json", *(f"checkpoint/{name}" for name in OUTPUT_FILES)}
    assert left == (set() if rule == "prepare_checkpoint" else whole)


def test_a_mended_input_is_built_without_more_ado(damaged):
    """The run after a failed one needs no option and does only what is missing."""
    workflow, _ = damaged
    for name in ("cut_short", "with_few_records"):
        shutil.copytree(
            workflow.folder / MODEL, workflow.folder / "exports" / name, dirs_exist_ok=True
        )
        shutil.copy(workflow.folder / DATA, workflow.folder / "exports" / f"{name}.json")
    targets = [
        f"results/{name}/c{CONTEXT}/calibration/manifest.json"
        for name in ("cut_short", "with_few_records")
    ]
    result = workflow.run(*targets)
    assert result.code == 0, result.text
    assert result.jobs == {"prepare_checkpoint": 1, "select_records": 2}


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Give an empty folder a file system of its own; skip the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("folder", "output", "size", "words"),
    [
        # Refused before anything is written, and in the middle of writing.
        (f"{RESULTS}/onnx", "model.onnx", "1m", r"\S+ needs [\d.]+ MB of disk space and 1\.0 MB"),
        (f"{RESULTS}/c{CONTEXT}/calibration", "manifest.json", "8k", "No space left on device"),
        (target("fp16", "emulator"), "run.json", "64k", "No space left on device"),
    ],
)
def test_a_full_disk(copy_of_built: Workflow, folder, output, size, words):
    place = copy_of_built.folder / folder
    with small_disk(place, size):
        (place / "other.txt").write_text("a file of another program")
        result = copy_of_built.run(f"{folder}/{output}")
        left = files_below(place)
    assert result.code == 1
    last = result.text.splitlines()[-1]
    assert re.match(f"error: {words}", last), last
    assert "; free some space or move the results folder with `snakemake --directory`" in last
    assert left == {"other.txt"}


def test_an_unsupported_machine(copy_of_built: Workflow, tmp_path):
    """Python there says that it runs on another processor."""
    (tmp_path / "sitecustomize.py").write_text(
        "import platform\nplatform.machine = lambda: 'aarch64'\n"
    )
    binary = copy_of_built.folder / target("fp16", "prefill.bin")
    before = files_below(binary.parent)
    binary.unlink()
    result = copy_of_built.run(target("fp16", "prefill.bin"), PYTHONPATH=str(tmp_path))
    assert result.code == 1
    last = result.text.splitlines()[-1]
    assert last.startswith("error: the QNN libraries cannot run here: ")
    assert "aarch64" in last
    assert "evaluation" in last, "what works on this machine"
    assert files_below(binary.parent) == before - {binary.name}
