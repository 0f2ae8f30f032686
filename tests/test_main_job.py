"""The README's own command on the real model, in a fresh copy, and what it must reach.

Its figures are printed after the tests' summary.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapbake.bundle_check import verify_bundle
from snapbake.families import DecoderSpec, read_spec
from snapbake.files import read_json, sha256_file
from snapbake.graph_names import plain_name
from snapbake.reference import stop_tokens
from workflow_copy import ROOT, count_jobs, end_group

pytestmark = pytest.mark.main_job

COMMAND = "snakemake --cores 4 all"
MODEL, CONTEXT, CHUNK, SOC = "smollm2-135m", 512, 128, "sm8650"
RECIPES = ("fp16", "w8a16")
DTYPES = {"fp16": "float16", "w8a16": "ufix16"}
# What the default build must keep. A quiet machine of two cores takes 12 to 13 minutes, which is
# what was asked for (15); the rest is room for a machine that others keep busy.
SECONDS, MEGABYTES = 30 * 60, 6000
# How long a build may take before it is ended: its figures are worth waiting for.
PATIENCE = 40 * 60


@dataclass
class Finished:
    """A copy of the repository in which the README's command was run."""

    folder: Path
    code: int
    text: str
    seconds: float

    def read(self, name: str) -> Any:
        """Read a JSON file of the model's results."""
        return read_json(self.folder / "results" / MODEL / name)

    def verdict(self, recipe: str) -> dict[str, Any]:
        return self.read(f"c{CONTEXT}/{recipe}/{SOC}/emulator/verify.json")

    def manifest(self, recipe: str) -> dict[str, Any]:
        return self.read(f"c{CONTEXT}/{recipe}/{SOC}/context.json")

    def costs(self) -> dict[str, tuple[float, float]]:
        """Map each job to its seconds and the most memory that it took, in MB."""
        found = {}
        for path in sorted((self.folder / "benchmarks").rglob("*.tsv")):
            names, values = (line.split("\t") for line in path.read_text().splitlines())
            row = dict(zip(names, values, strict=True))
            place = path.relative_to(self.folder / "benchmarks").with_suffix("")
            memory = 0.0 if row["max_rss"] == "NA" else float(row["max_rss"])
            found[str(place)] = (float(row["s"]), memory)
        return found


def run_command(folder: Path) -> tuple[int, str]:
    """Run the command as a person would whose environment is active."""
    path = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
    process = subprocess.Popen(
        ["bash", "-c", COMMAND],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        end_group(process)
        text, _ = process.communicate()
    finally:
        end_group(process)
    return process.returncode, text


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, figures: list[str]) -> Iterator[Finished]:
    """The build of a fresh copy without results. Its 4 GB are removed at the end."""
    folder = tmp_path_factory.mktemp("main_job") / "snapbake"
    unwanted = (".*", "__pycache__", "results", "logs", "benchmarks")
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*unwanted))
    started = time.monotonic()
    code, text = run_command(folder)
    build = Finished(folder, code, text, time.monotonic() - started)
    figures += tell(build)
    yield build
    shutil.rmtree(folder)


def tell(build: Finished) -> list[str]:
    """Return the figures of a build in lines, as far as it came."""
    minutes, seconds = divmod(round(build.seconds), 60)
    costs = build.costs()
    lines = [f"`{COMMAND}`: exit code {build.code} after {minutes} min {seconds} s"]
    lines += [f"{time:8.1f} s {memory:7.0f} MB  {job}" for job, (time, memory) in costs.items()]
    for recipe in RECIPES:
        place = build.folder / "results" / MODEL / f"c{CONTEXT}" / recipe / SOC
        if (place / "context.json").exists():
            content = build.manifest(recipe)
            size = content["binary"]["bytes"] / 1e6
            lines.append(f"{recipe}: {size:.1f} MB, {content['ratio_to_decode']:.4f} of decode.bin")
        if (place / "emulator" / "verify.json").exists():
            verdict = build.verdict(recipe)
            for where in ("emulator", "cpu", "emulator_against_cpu"):
                found = verdict[where]
                lines.append(
                    f"{recipe}, {where.replace('_', ' ')}, {found['tokens']} tokens: "
                    f"KL {found['kl_divergence']:.6f}, top-1 {found['top1_agreement']:.4f}, "
                    f"perplexity {found['perplexity_increase']:+.4%}, "
                    f"cosine {found['logits_cosine']:.7f}"
                )
            lines.append(f"{recipe}, answer: {verdict['answer']}")
            lines.append(f"{recipe}, Genie: {verdict['genie']}")
            chat = build.read(f"c{CONTEXT}/{recipe}/{SOC}/emulator/genie.json")
            lines += [
                f"{recipe}, {each['question']} {each['genie']['text']!r}"
                for each in chat["prompts"]
            ]
    return lines


def test_the_command_is_the_readme_s():
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert COMMAND in blocks[0], "the first thing that the README says"


def test_it_succeeds(finished):
    assert finished.code == 0, finished.text[-5000:]


def test_it_takes_at_most_thirty_minutes(finished):
    assert finished.seconds <= SECONDS


def test_no_job_takes_more_than_six_gigabytes(finished):
    costs = finished.costs()
    assert {place.split("/")[0] for place in costs} >= {"export_onnx", "evaluate_recipe"}
    assert {job: memory for job, (_, memory) in costs.items() if memory > MEGABYTES} == {}


def test_fp16_on_the_emulator_is_the_float_model(finished):
    verdict = finished.verdict("fp16")
    assert verdict["accepted"]
    assert verdict["emulator"]["logits_cosine"] >= 0.9999


def test_w8a16_on_the_emulator_keeps_the_limits(finished):
    verdict = finished.verdict("w8a16")
    assert verdict["accepted"]
    found = verdict["emulator"]
    assert found["kl_divergence"] <= 0.03
    assert found["top1_agreement"] >= 0.93
    assert found["perplexity_increase"] <= 0.04


@pytest.mark.parametrize("recipe", RECIPES)
def test_enough_text_was_verified(finished, recipe):
    verdict = finished.verdict(recipe)
    assert verdict["cpu"]["records"] >= 32
    assert verdict["emulator"]["tokens"] > CHUNK, "more than one chunk, the cache handed on"
    assert verdict["emulator_against_cpu"]["tokens"] == verdict["emulator"]["tokens"]
    layers = spec_of(finished).layers
    assert verdict["emulator"]["kv_cosine"].keys() == {
        f"past_{kind}_{layer}" for kind in ("key", "value") for layer in range(layers)
    }


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_answer_was_generated(finished, recipe):
    results = finished.folder / "results" / MODEL
    with np.load(results / f"c{CONTEXT}/{recipe}/{SOC}/emulator/outputs.npz") as arrays:
        ids = arrays["answer_ids"].tolist()
    assert len(ids) == finished.verdict(recipe)["answer"]["tokens"]
    assert len(ids) >= 16 or ids[-1] in stop_tokens(results / "checkpoint")


@pytest.mark.parametrize("recipe", RECIPES)
def test_genie_answers_three_prompts_as_the_cpu_does(finished, recipe):
    """Token by token, and where they part the CPU found both nearly equally likely."""
    answers = finished.read(f"c{CONTEXT}/{recipe}/{SOC}/emulator/genie.json")["prompts"]
    verdict = finished.verdict(recipe)["genie"]
    assert len(answers) == verdict["prompts"] == 3
    assert verdict["passed"]
    for answer in answers:
        assert answer["same_prompt"]
        assert answer["same_text"]
        assert answer["genie"]["text"]
        if not answer["differences"]:
            assert answer["genie"]["tokens"] == answer["cpu"]["tokens"]
            assert answer["genie"]["text"].startswith(answer["cpu"]["text"])
        for each in answer["differences"]:
            assert each["margin"] <= verdict["near_tie_limit"]
    page = (finished.folder / "results" / "report" / "genie.html").read_text()
    for answer in answers:
        for side in ("genie", "float"):
            assert escape(answer[side]["text"]) in page


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_bundle_is_whole_and_for_this_chip(finished, recipe):
    bundle = finished.folder / "results" / MODEL / f"c{CONTEXT}" / recipe / SOC / "bundle"
    assert verify_bundle(bundle, SOC).context == CONTEXT
    manifest = read_json(bundle / "MANIFEST.json")
    assert manifest["checkpoint"]["sha256"] == finished.read("checkpoint.json")["sha256"]


def test_every_graph_is_the_model(finished):
    stages = finished.read(f"c{CONTEXT}/onnx_check.json")["stages"]
    assert stages.keys() == {"exported", "static", "simplified", "adapted"}
    for stage in stages.values():
        for graph in stage.values():
            assert max(part["fraction"] for part in graph.values()) <= 1e-3


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_are_shared(finished, recipe):
    assert finished.manifest(recipe)["ratio_to_decode"] <= 1.08


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_ships_has_the_contract_s_graphs(finished, recipe):
    folder = finished.folder / "results" / MODEL / f"c{CONTEXT}" / recipe / SOC
    content = finished.manifest(recipe)
    assert content["binary"]["sha256"] == sha256_file(folder / "context.bin")
    assert content["graphs"].keys() == {"prefill", "decode"}
    for name, tokens in (("prefill", CHUNK), ("decode", 1)):
        graph = content["graphs"][name]
        assert plain_name(graph["name"]) == name
        tensors = {tensor["name"]: tensor for tensor in (*graph["inputs"], *graph["outputs"])}
        shapes = {name: tensor["shape"] for name, tensor in tensors.items()}
        assert shapes == contract_shapes(spec_of(finished), tokens)
        dtypes = {name: tensor["dtype"] for name, tensor in tensors.items()}
        assert dtypes == dict.fromkeys(shapes, DTYPES[recipe]) | {"input_ids": "int32"}
        for name in shapes:
            if name.endswith("_in"):
                out = tensors[name.replace("_in", "_out")]
                assert (tensors[name]["scale"], tensors[name]["offset"]) == (
                    out["scale"],
                    out["offset"],
                ), "the cache goes back in as it came out"


def spec_of(build: Finished) -> DecoderSpec:
    return read_spec(build.read("checkpoint/config.json"))


def contract_shapes(spec: DecoderSpec, tokens: int) -> dict[str, list[int]]:
    """Return the shape of every tensor at the borders of a graph that takes `tokens` tokens."""
    heads, size, past = spec.kv_heads, spec.head_dim, CONTEXT - tokens
    shapes = {
        "input_ids": [1, tokens],
        "attention_mask": [1, 1, tokens, CONTEXT],
        "position_ids_cos": [1, 1, tokens, size // 2],
        "position_ids_sin": [1, 1, tokens, size // 2],
        "logits": [1, tokens, spec.vocab_size],
    }
    for layer in range(spec.layers):
        shapes[f"past_key_{layer}_in"] = [1, heads, size, past]
        shapes[f"past_value_{layer}_in"] = [1, heads, past, size]
        shapes[f"past_key_{layer}_out"] = [1, heads, size, tokens]
        shapes[f"past_value_{layer}_out"] = [1, heads, tokens, size]
    return shapes


def test_the_report_names_the_model(finished):
    results = finished.folder / "results"
    report = (results / "report.html").read_text()
    assert MODEL in report
    assert MODEL in (results / "report" / "verdict.html").read_text()
    for figure in (results / "report").iterdir():
        assert figure.name in report


def test_a_second_run_has_nothing_to_do(finished):
    started = time.monotonic()
    code, text = run_command(finished.folder)
    assert code == 0, text[-5000:]
    assert "Nothing to be done" in text
    assert count_jobs(text) == {}
    assert time.monotonic() - started < 60
