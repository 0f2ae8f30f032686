"""From a fine-tuned folder to accepted binaries and the report, by the real programs."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from default_jobs import EVERY_JOB
from snapbake.bundle_check import verify_bundle
from snapbake.files import read_json, sha256_file
from snapbake.graph_names import plain_name
from tiny_build import CHUNK, CONTEXT, RECIPES, RESULTS, target
from workflow_copy import Workflow

pytestmark = pytest.mark.slow

DTYPES = {"fp16": "float16", "w8a16": "ufix16"}


def test_the_whole_build_succeeds(first_run):
    _, result = first_run
    assert result.code == 0, result.text
    assert result.jobs == EVERY_JOB
    assert "Traceback" not in result.text


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_ships(built, recipe):
    """context.json tells the truth about context.bin, and both graphs have the contract's form."""
    folder = built.folder / target(recipe, "")
    content = read_json(folder / "context.json")
    assert content["binary"]["sha256"] == sha256_file(folder / "context.bin")
    for entry in (*content["made_from"], *content["proven"].values()):
        assert entry["sha256"] == sha256_file(folder / entry["path"]), entry["path"]
    assert (content["soc"], content["soc_model"], content["arch"]) == ("sm8650", 57, 75)
    assert content["graphs"].keys() == {"prefill", "decode"}
    for name, tokens in (("prefill", CHUNK), ("decode", 1)):
        graph = content["graphs"][name]
        assert plain_name(graph["name"]) == name
        shapes = {t["name"]: t["shape"] for t in (*graph["inputs"], *graph["outputs"])}
        assert shapes == {
            "input_ids": [1, tokens],
            "attention_mask": [1, 1, tokens, CONTEXT],
            "position_ids_cos": [1, 1, tokens, 32],
            "position_ids_sin": [1, 1, tokens, 32],
            "logits": [1, tokens, 512],
            **{f"past_key_{n}_in": [1, 1, 64, CONTEXT - tokens] for n in range(2)},
            **{f"past_value_{n}_in": [1, 1, CONTEXT - tokens, 64] for n in range(2)},
            **{f"past_key_{n}_out": [1, 1, 64, tokens] for n in range(2)},
            **{f"past_value_{n}_out": [1, 1, tokens, 64] for n in range(2)},
        }
        dtypes = {t["dtype"] for t in (*graph["inputs"], *graph["outputs"])}
        assert dtypes == {"int32", DTYPES[recipe]}


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_was_verified(built, recipe):
    verdict = read_json(built.folder / target(recipe, "emulator/verify.json"))
    assert verdict["accepted"]
    assert {check["where"] for check in verdict["checks"]} == {"emulator", "cpu"}
    assert verdict["emulator"]["tokens"] > CHUNK, "more than one chunk, the cache handed on"
    assert verdict["emulator"]["kv_cosine"].keys() == {
        f"past_{kind}_{layer}" for kind in ("key", "value") for layer in range(2)
    }
    assert verdict["answer"]["tokens"] >= 16
    assert verdict["cpu"]["records"] == 32
    accepted = (built.folder / target(recipe, "emulator/accepted.txt")).read_text()
    assert len(accepted.splitlines()) == len(verdict["checks"]) + 1, "the limits and Genie"


def test_fp16_keeps_the_numbers(built):
    verdict = read_json(built.folder / target("fp16", "emulator/verify.json"))
    assert verdict["emulator"]["logits_cosine"] >= 0.9999
    assert verdict["emulator"]["kl_divergence"] < 1e-3


def test_every_graph_was_checked(built):
    stages = read_json(built.folder / RESULTS / f"c{CONTEXT}" / "onnx_check.json")["stages"]
    assert stages.keys() == {"exported", "static", "simplified", "adapted"}
    for stage in stages.values():
        for graph in stage.values():
            assert max(part["fraction"] for part in graph.values()) <= 1e-3


def test_the_report_is_about_this_build(built):
    report = (built.folder / "results" / "report.html").read_text()
    figures = ["verdict.html", "accuracy.svg", "answers.html", "genie.html", "size.svg", "cost.svg"]
    for figure in figures:
        assert figure in report
        assert (built.folder / "results" / "report" / figure).stat().st_size > 1000
    verdict = (built.folder / "results" / "report" / "verdict.html").read_text()
    for word in ("tiny", "fp16", "w8a16", "SM8650"):
        assert word in verdict


def test_every_job_has_a_log_and_what_it_cost(built):
    for rule, count in EVERY_JOB.items():
        for folder, ending in (("logs", "log"), ("benchmarks", "tsv")):
            found = [
                *(built.folder / folder).glob(f"{rule}.{ending}"),
                *(built.folder / folder / rule).rglob(f"*.{ending}"),
            ]
            quick = rule in ("accept_target", "write_report") and folder == "benchmarks"
            assert len(found) == (0 if quick else count), (folder, rule)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_dlc_of_a_graph_by_its_path(built, recipe):
    dlc = f"{RESULTS}/c{CONTEXT}/{recipe}/decode.dlc"
    result = built.run(dlc)
    assert result.code == 0, result.text
    assert result.jobs == {"write_dlc": 1}
    assert (built.folder / dlc).read_bytes().startswith(b"PK"), "a DLC is a zip archive"


def test_the_bundle_is_whole_and_its_archive_by_its_path(built):
    bundle = built.folder / target("w8a16", "bundle")
    assert verify_bundle(bundle, "sm8650").context == CONTEXT
    archive = target("w8a16", "bundle.tar.zst")
    result = built.run(archive)
    assert result.code == 0, result.text
    assert result.jobs == {"pack_bundle": 1}
    listed = subprocess.run(
        ["tar", "--zstd", "-tf", built.folder / archive], capture_output=True, text=True, check=True
    ).stdout.split()
    files = [path.relative_to(bundle.parent).as_posix() for path in bundle.rglob("*.*")]
    assert set(files) <= set(listed)


def test_the_bundle_for_onnxruntime_answers(built):
    folder = target("w8a16", "bundle-ort")
    result = built.run(f"{folder}/metadata.json")
    assert result.code == 0, result.text
    assert result.jobs == {"make_ort_bundle": 1}
    question = "What is the capital of France?"
    done = subprocess.run(
        [sys.executable, built.folder / folder / "run_with_onnxruntime.py", question, "4"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answers = read_json(built.folder / target("w8a16", "emulator/genie.json"))["prompts"]
    assert answers[0]["question"] == question
    tokenizer = Tokenizer.from_file(str(built.folder / folder / "tokenizer.json"))
    tokens = answers[0]["genie"]["tokens"][:4]
    assert done.stdout.endswith("".join(tokenizer.decode([token]) for token in tokens) + "\n")


def test_pytorch_weights_by_their_path(built):
    path = f"{RESULTS}/torch/pytorch_model.bin"
    result = built.run(path)
    assert result.code == 0, result.text
    assert result.jobs == {"write_torch_weights": 1}
    weights = torch.load(built.folder / path, weights_only=True)
    for name, tensor in load_file(built.folder / "exports/tiny/model.safetensors").items():
        assert torch.equal(weights[name], tensor), name


@pytest.mark.parametrize(
    ("path", "jobs"),
    [
        (f"{RESULTS}/onnx/c{CONTEXT}.simplified.prefill.onnx", {"simplify_graph": 1}),
        (target("w8a16", "emulator/decode/Result_0/logits.raw"), {"run_emulator": 1}),
        (target("fp16", "prefill.bin"), {"compile_graph": 1}),
    ],
)
def test_a_file_is_made_again_by_its_path(copy_of_built: Workflow, path, jobs):
    """Only its own rule runs, and its bytes are the old ones."""
    file = copy_of_built.folder / path
    before = file.read_bytes()
    file.unlink()
    result = copy_of_built.run(path)
    assert result.code == 0, result.text
    assert result.jobs == jobs
    assert file.read_bytes() == before


def test_the_first_step_is_there_as_qnn_net_run_leaves_it(built):
    """Each graph's input list names its files, and the logits have the size of the graph's."""
    for recipe, (graph, tokens) in zip(RECIPES, (("prefill", CHUNK), ("decode", 1)), strict=True):
        folder = built.folder / target(recipe, f"emulator/{graph}")
        words = (folder / "input_list.txt").read_text().split()
        named = dict(re.fullmatch(r"(\w+):=(.+)", word).groups() for word in words)
        assert len(named) == 8
        assert all((folder / path).is_file() for path in named.values())
        logits = np.fromfile(folder / "Result_0" / "logits.raw", "<u2")
        assert logits.size == tokens * 512


def test_missed_limits_fail_the_build_and_the_report_is_there(copy_of_built: Workflow):
    """The figures are those of before: only judging and reporting runs again."""
    folder = copy_of_built.folder
    recipes = folder / "config" / "recipes.yaml"
    text = recipes.read_text().replace("kl_divergence: 0.03", "kl_divergence: 1.0e-9")
    recipes.write_text(text.replace("logits_cosine: 0.9999", "logits_cosine: 1.0"))
    report = folder / "results" / "report.html"
    before = report.stat().st_mtime_ns
    result = copy_of_built.run("all")
    assert result.code == 1
    assert result.jobs == {
        "verify_target": 2,
        "accept_target": 2,
        "make_bundle": 2,
        "draw_report": 1,
        "write_report": 1,
    }
    for recipe in RECIPES:
        assert not read_json(folder / target(recipe, "emulator/verify.json"))["accepted"]
        assert not (folder / target(recipe, "emulator/accepted.txt")).exists()
        assert (folder / target(recipe, "context.bin")).exists()
    assert report.stat().st_mtime_ns > before, "the report is new"
    figures = {
        "fp16": r"the cosine of the logits on the emulator is "
        r"0\.\d+, [\d.e-]+ below the limit of 1 ",
        "w8a16": r"the KL divergence of the next-token distributions on the emulator is "
        r"[\d.e-]+, [\d.e-]+ above the limit of 1e-09 ",
    }
    said = result.text.splitlines()[-2:]
    for sentence, recipe in zip(said, RECIPES, strict=True):
        path = target(recipe, "emulator/verify.json")
        start = rf"error: {path}: {figures[recipe]}\(worst at record \d+, position \d+\); the "
        assert re.match(start, sentence), sentence
        assert sentence.endswith(f"(logs/accept_target/tiny/c{CONTEXT}/{recipe}/sm8650.log)")
    assert copy_of_built.plan().keys() == {"accept_target", "make_bundle"}
