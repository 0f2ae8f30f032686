"""A tiny model from its checkpoint to the verdict, with the real compiler and emulator.

Both recipes go the whole way once, one by its functions and one by the programs.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract_graphs import (
    CHUNK,
    CONTEXT,
    calibration_ids,
    make_contract,
    token_record,
    write_records,
)
from gate_tools import prepare
from snapbake.chat_preparation import prepare_chat
from snapbake.context_binary import compile_graph
from snapbake.emulator_run import run_emulator
from snapbake.errors import SnapbakeError
from snapbake.evaluation import evaluate_recipe
from snapbake.files import read_json, sha256_file, write_json
from snapbake.fp16 import convert_fp16
from snapbake.genie_gate import run_genie
from snapbake.htp_target import HtpTarget
from snapbake.reference import compute_reference
from snapbake.safetensors_file import stored_identity
from snapbake.subset import load_subset
from snapbake.token_records import TokenRecord
from snapbake.verdict import verify_target
from tiny_binaries import make_tiny_binaries

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SM8650 = HtpTarget(soc_model=57, arch=75, vtcm_mb=8)
GENERATED = 6
QUESTION = "Who?"
# fp16 with biases; w8a16 with norms of queries and keys.
FAMILY = {"fp16": "qwen2", "w8a16": "qwen3"}


@dataclass(frozen=True)
class Chain:
    """Everything that was made of one model with one recipe."""

    checkpoint: Path
    folder: Path

    @property
    def binaries(self) -> dict[str, Path]:
        return {graph: self.folder / f"{graph}.bin" for graph in ("prefill", "decode")}

    @property
    def emulator(self) -> Path:
        return self.folder / "emulator"

    def verdict(self) -> dict[str, Any]:
        return read_json(self.emulator / "verify.json")


def held_out() -> list[TokenRecord]:
    """A record of calibration, so that nothing is out of range, and two short ones."""
    known = TokenRecord(0, tuple(calibration_ids()[0]), 20, "prompt 0", "answer 0")
    return [token_record(1, 12, 10), known, token_record(2, 3, 2)]


def make_fp16(checkpoint: Path, folder: Path) -> Chain:
    """Go the way in this process."""
    graphs = make_contract(checkpoint, folder / "htp")
    convert_fp16(graphs["prefill"], graphs["decode"], folder)
    records = write_records(folder / "heldout.json", held_out())
    chain = Chain(checkpoint, folder)
    compute_reference(checkpoint, records, CHUNK, 1, GENERATED, 2, folder / "reference.npz")
    recipe = {graph: folder / f"{graph}.onnx" for graph in graphs}
    evaluate_recipe(
        checkpoint,
        recipe,
        folder / "encodings.json",
        records,
        folder / "reference.npz",
        CHUNK,
        2,
        folder / "evaluation.json",
        folder / "cpu_outputs.npz",
    )
    for graph, binary in chain.binaries.items():
        compile_graph(recipe[graph], graph, SM8650, binary)
    run_emulator(
        chain.binaries,
        checkpoint,
        folder / "encodings.json",
        folder / "reference.npz",
        CHUNK,
        CONTEXT,
        chain.emulator,
    )
    template, prompts = folder / "prompt_template.json", folder / "prompts.json"
    prepare_chat(checkpoint, [QUESTION], GENERATED, CONTEXT, CHUNK, 1, template, prompts)
    run_genie(
        chain.binaries,
        recipe,
        checkpoint,
        folder / "encodings.json",
        template,
        prompts,
        CHUNK,
        CONTEXT,
        SM8650.soc_model,
        SM8650.arch,
        GENERATED,
        1,
        folder / "genie.json",
    )
    verify_target(
        chain.emulator / "run.json",
        chain.emulator / "outputs.npz",
        folder / "evaluation.json",
        folder / "cpu_outputs.npz",
        folder / "reference.npz",
        folder / "genie.json",
        {"logits_cosine": 0.999},
        chain.emulator / "verify.json",
    )
    return chain


def run_program(name: str, folder: Path, options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, the options as on a command line."""
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *options.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def make_w8a16(checkpoint: Path, folder: Path) -> Chain:
    """Go the way as the rules do, with programs."""
    prepare(checkpoint, folder)
    write_records(folder / "heldout.json", held_out())
    write_records(
        folder / "calibration.json",
        [TokenRecord(i, tuple(ids), 1, "", "") for i, ids in enumerate(calibration_ids())],
    )
    model, shapes = "--checkpoint checkpoint", f"--tokens {CHUNK} --context {CONTEXT}"
    adapt = f"{model} --index htp/weights.json --context {CONTEXT}"
    pair = "--prefill prefill.onnx --decode decode.onnx"
    for name, options in (
        ("write_htp_weights", f"{model} --data htp/weights.data --index htp/weights.json"),
        ("adapt_graph", f"{adapt} --tokens {CHUNK} --output htp/prefill.onnx"),
        ("adapt_graph", f"{adapt} --tokens 1 --output htp/decode.onnx"),
        (
            "quantize_graphs",
            f"--prefill htp/prefill.onnx --decode htp/decode.onnx {model} {shapes} --calibration "
            "calibration.json --weight-bits 8 --activation-bits 16 --kv-bits 16 --output-dir .",
        ),
        (
            "compute_reference",
            f"{model} --held-out heldout.json --tokens {CHUNK} --readings 1 "
            f"--generate {GENERATED} --output reference.npz",
        ),
        (
            "evaluate_recipe",
            f"{model} {pair} --encodings encodings.json --held-out heldout.json --tokens {CHUNK} "
            "--reference reference.npz --output evaluation.json --cpu-output cpu_outputs.npz",
        ),
    ):
        done = run_program(name, folder, options)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    chain = Chain(folder / "checkpoint", folder)
    for graph, binary in chain.binaries.items():
        compile_graph(folder / f"{graph}.onnx", graph, SM8650, binary)
    chat = "--template prompt_template.json --prompts prompts.json"
    for name, options in (
        (
            "run_emulator",
            f"--prefill prefill.bin --decode decode.bin {model} {shapes} "
            "--encodings encodings.json --reference reference.npz --output-dir emulator",
        ),
        (
            "prepare_chat",
            f"{model} {shapes} --questions {QUESTION} --count {GENERATED} {chat}",
        ),
        (
            "run_genie",
            f"--binaries prefill.bin decode.bin --graphs prefill.onnx decode.onnx {model} {shapes} "
            f"--encodings encodings.json {chat} --soc-model {SM8650.soc_model} "
            f"--arch {SM8650.arch} --count {GENERATED} --output genie.json",
        ),
        (
            "verify_target",
            "--run emulator/run.json --outputs emulator/outputs.npz --evaluation evaluation.json "
            "--cpu-outputs cpu_outputs.npz --reference reference.npz --genie genie.json "
            "--output emulator/verify.json --limits kl_divergence=0.02 top1_agreement=0.85",
        ),
        ("accept_target", "--verdict emulator/verify.json --output emulator/accepted.txt"),
    ):
        done = run_program(name, folder, options)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    return chain


@pytest.fixture(scope="module")
def chains(
    tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Chain]:
    """One way a recipe, gone once."""
    make = {"fp16": make_fp16, "w8a16": make_w8a16}
    return {
        recipe: make[recipe](tiny_models[family], tmp_path_factory.mktemp(recipe))
        for recipe, family in FAMILY.items()
    }


@pytest.fixture(params=FAMILY)
def chain(request: pytest.FixtureRequest, chains: dict[str, Chain]) -> Chain:
    return chains[request.param]


def test_the_emulator_agrees_with_the_cpu(chain: Chain) -> None:
    with (
        np.load(chain.emulator / "outputs.npz") as emulated,
        np.load(chain.folder / "cpu_outputs.npz") as computed,
    ):
        for logits in (emulated["reading_0_logits"], computed["reading_0_logits"]):
            assert logits.shape == (2 * CHUNK + 4, 512)
            assert logits.dtype == np.float32
        np.testing.assert_array_equal(emulated["answer_ids"], computed["answer_ids"])
    verdict = chain.verdict()
    assert verdict["emulator_against_cpu"]["kl_divergence"] < 3e-3
    assert verdict["emulator_against_cpu"]["top1_agreement"] > 0.9
    assert verdict["emulator_against_cpu"]["logits_cosine"] > 0.999
    assert min(verdict["emulator"]["kv_cosine"].values()) > 0.999
    assert verdict["answer"]["agreeing_with_cpu"] == verdict["answer"]["tokens"] == GENERATED


def test_the_cache_is_that_of_the_reference(chain: Chain) -> None:
    (reading,) = load_subset(chain.folder / "reference.npz").readings
    with np.load(chain.emulator / "outputs.npz") as arrays:
        cache = arrays["reading_0_cache"]
    assert cache.shape == reading.cache.shape == (2, 2, 1, len(reading.ids), 64)
    assert np.abs(cache - reading.cache).max() < 0.1 * np.ptp(reading.cache)


def test_the_run_says_what_it_did(chain: Chain) -> None:
    run = read_json(chain.emulator / "run.json")
    # Two chunks and four tokens of the reading, a prompt of one chunk and the tokens after it.
    kinds = [(step["part"], step["record"], step["graph"]) for step in run["steps"]]
    assert kinds == [
        *[("reading", 0, "prefill")] * 2,
        *[("reading", 0, "decode")] * 4,
        ("answer", 1, "prefill"),
        *[("answer", 1, "decode")] * (GENERATED - 1),
    ]
    assert run["seconds"] == pytest.approx(sum(step["seconds"] for step in run["steps"]), abs=0.01)
    for graph, binary in chain.binaries.items():
        assert run["binaries"][graph]["sha256"] == sha256_file(binary)
        assert run["binaries"][graph]["load_seconds"] > 0


def test_the_identity_of_the_weights_is_carried(chain: Chain) -> None:
    identity = stored_identity(chain.checkpoint / "model.safetensors")
    assert read_json(chain.emulator / "run.json")["weights_sha256"] == identity
    assert chain.verdict()["weights_sha256"] == identity
    summary = chain.folder / "checkpoint.json"
    assert identity == (read_json(summary)["sha256"] if summary.exists() else None)


def test_nothing_else_is_left(chain: Chain) -> None:
    names = {path.name for path in chain.emulator.iterdir()} - {"accepted.txt"}
    assert names == {"decode", "outputs.npz", "prefill", "run.json", "verify.json"}
    for graph in chain.binaries:
        kept = {path.name for path in (chain.emulator / graph).iterdir()}
        assert kept == {"Result_0", "input_list.txt", "inputs"}


@pytest.mark.parametrize("graph", ["prefill", "decode"])
def test_a_step_is_repeated_by_net_run(chain: Chain, graph: str, tmp_path: Path) -> None:
    """The files of the first step are what qnn-net-run takes, and give the same bytes."""
    folder = chain.emulator / graph
    done = run_program(
        "net_run",
        folder,
        f"--retrieve_context {chain.binaries[graph]} --input_list input_list.txt "
        f"--output_dir {tmp_path} --use_native_input_files --use_native_output_files",
    )
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (folder / "Result_0").iterdir()}
    assert names == {path.name for path in (tmp_path / "Result_0").iterdir()}
    assert "logits.raw" in names
    for name in names:
        again = (tmp_path / "Result_0" / name).read_bytes()
        assert again == (folder / "Result_0" / name).read_bytes(), name


def test_the_evaluation_is_over_all_held_out_text(chain: Chain) -> None:
    evaluation = read_json(chain.folder / "evaluation.json")
    records = held_out()
    assert evaluation["records"] == len(records)
    assert evaluation["tokens"] == sum(len(record.ids) for record in records)
    assert evaluation["kv_cosine"].keys() == {
        f"past_{kind}_{layer}" for kind in ("key", "value") for layer in (0, 1)
    }
    assert [answer["record"] for answer in evaluation["answers"]] == [1, 2, 0]
    first = evaluation["answers"][0]
    assert (first["prompt"], first["expected"]) == ("prompt 1", "answer 1")
    assert first["float"]
    assert first["recipe"]
    assert chain.verdict()["cpu"]["kl_divergence"] == evaluation["kl_divergence"]


def test_the_limits_were_judged_and_kept(chains: dict[str, Chain]) -> None:
    for chain in chains.values():
        verdict = chain.verdict()
        assert verdict["accepted"]
        assert {check["where"] for check in verdict["checks"]} == {"emulator", "cpu"}
        assert all(check["passed"] for check in verdict["checks"])
    kept = (chains["w8a16"].emulator / "accepted.txt").read_text().splitlines()
    assert len(kept) == 5
    assert kept[0].startswith("kl_divergence on the emulator: 0.0")
    assert kept[0].endswith("(limit 0.02)")


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Path]:
    """A folder with an earlier result, which a failing run must leave alone."""
    output = tmp_path / "emulator"
    (output / "prefill").mkdir(parents=True)
    (output / "prefill" / "input_list.txt").write_text("earlier")
    yield output
    assert [path.name for path in output.iterdir()] == ["prefill"]
    assert (output / "prefill" / "input_list.txt").read_text() == "earlier"


def attempt(
    chain: Chain,
    output: Path,
    binaries: dict[str, Path] | None = None,
    encodings: Path | None = None,
    tokens: int = CHUNK,
    context: int = CONTEXT,
) -> None:
    run_emulator(
        binaries or chain.binaries,
        chain.checkpoint,
        encodings or chain.folder / "encodings.json",
        chain.folder / "reference.npz",
        tokens,
        context,
        output,
    )


def test_a_binary_that_does_not_load_leaves_nothing(
    chains: dict[str, Chain], tmp_path: Path, earlier: Path
) -> None:
    chain = chains["fp16"]
    damaged = tmp_path / "decode.bin"
    damaged.write_bytes(chain.binaries["decode"].read_bytes()[:5000])
    binaries = {**chain.binaries, "decode": damaged}
    for output in (tmp_path / "new", earlier):
        with pytest.raises(SnapbakeError, match=r"decode\.bin"):
            attempt(chain, output, binaries)
    assert not (tmp_path / "new").exists()


def test_encodings_of_another_recipe_are_refused(
    chains: dict[str, Chain], tmp_path: Path, earlier: Path
) -> None:
    """uint16 codes would be taken for fp16 numbers, and nothing would be said."""
    chain, content = chains["w8a16"], read_json(chains["w8a16"].folder / "encodings.json")
    half = {name: {"dtype": "float16"} for name in content["tensors"]}
    write_json(tmp_path / "half.json", {**content, "tensors": half})
    with pytest.raises(SnapbakeError, match=r"prefill\.bin has \w+ as uint16 \(scale .* float16; "):
        attempt(chain, earlier, encodings=tmp_path / "half.json")
    content["tensors"]["past_key_1_in"]["scale"] *= 1.001
    write_json(tmp_path / "other.json", content)
    with pytest.raises(SnapbakeError, match=r"prefill\.bin has past_key_1_in as uint16 \(scale"):
        attempt(chain, earlier, encodings=tmp_path / "other.json")


def test_another_context_is_refused(chains: dict[str, Chain], earlier: Path) -> None:
    with pytest.raises(
        SnapbakeError, match=r"takes attention_mask as \[1, 1, 16, 64\] and .* \[1, 1, 16, 128\]"
    ):
        attempt(chains["fp16"], earlier, context=128)


def test_a_binary_of_two_graphs_is_refused(
    chains: dict[str, Chain], tmp_path: Path, earlier: Path
) -> None:
    binaries = make_tiny_binaries(tmp_path / "tiny")
    both = dict.fromkeys(("prefill", "decode"), binaries.split)
    with pytest.raises(
        SnapbakeError, match=r"split\.bin holds 2 graphs and the emulator takes one"
    ):
        attempt(chains["fp16"], earlier, both)
