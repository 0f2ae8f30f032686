"""Genie on the emulator answers as the CPU does, for every family, and what cannot be is said."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from contract_graphs import make_contract, token_ids
from genie_builds import QUESTIONS, GenieBuild, gate, make_genie_build
from snapbake.chat_prompts import read_chat_prompts
from snapbake.decoding import Decoder
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json
from snapbake.fp16 import convert_fp16
from snapbake.genie import Genie
from snapbake.genie_gate import near_tie_limit, require_genie
from tiny_models import make_tiny_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
BUILDS = {
    "qwen2": ("qwen2", "w8a16", {}),
    "qwen3-128": ("qwen3", "w8a16", {"head_dim": 128}),
    "llama3-rope-128": ("llama", "fp16", {"head_dim": 128, "rope_scaling": LLAMA3_ROPE}),
    "linear-rope": (
        "llama",
        "fp16",
        {"num_key_value_heads": 2, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> GenieBuild:
    """A Llama of one layer in fp16, chunks of 16 in a context of 64.

    Two heads of 64 in the cache: with one, the cache has 6 KB a tensor, and Genie on the emulator
    reads fp16 caches of that size wrongly (with 12 KB and more, as every real model has, rightly).
    """
    return make_genie_build(
        tmp_path_factory.mktemp("genie"), "llama", "fp16", num_key_value_heads=2
    )


@pytest.fixture(scope="module")
def genie(llama: GenieBuild, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Genie]:
    with llama.genie(tmp_path_factory.mktemp("settings")) as genie:
        yield genie


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_genie_answers_as_the_cpu_does(name: str, tmp_path: Path) -> None:
    family, recipe, overrides = BUILDS[name]
    build = make_genie_build(tmp_path, family, recipe, **overrides)
    check_gate(build, tmp_path / "genie.json")


@pytest.mark.slow
def test_a_llama_passes_the_gate(llama: GenieBuild, tmp_path: Path) -> None:
    check_gate(llama, tmp_path / "genie.json")


def check_gate(build: GenieBuild, output: Path) -> None:
    result = gate(build, output)
    assert result["passed"], result
    require_genie(output)
    assert [each["question"] for each in result["prompts"]] == list(QUESTIONS)
    for answer in result["prompts"]:
        assert answer["genie"]["tokens"]
        assert answer["same_prompt"]
        assert answer["same_text"]
        # A prompt of more than one chunk, so that the cache is handed on.
        assert answer["prompt_tokens"] > build.chunk


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40, 48])
def test_prompts_of_every_length(llama: GenieBuild, genie: Genie, length: int) -> None:
    prompt = token_ids(length, seed=length)
    expected = Decoder(llama.pair, llama.cpu().run).generate(prompt, 64, llama.plain.stop_ids)
    answer = genie.answer_tokens(prompt, 64)
    # Random weights have many near ties, so only the beginning must agree.
    assert answer[:1] == expected[:1]
    assert len(answer) <= 64 - length


@pytest.mark.slow
def test_another_model_than_genies_is_noticed(llama: GenieBuild, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", "llama", seed=1, layers=1, num_key_value_heads=2)
    graphs = make_contract(other, tmp_path / "htp", llama.chunk, llama.context)
    convert_fp16(*graphs.values(), tmp_path / "fp16")
    result = gate(llama, tmp_path / "genie.json", graphs=tmp_path / "fp16")
    assert not result["passed"]
    with pytest.raises(SnapbakeError, match=r"otherwise than the CPU at token .* nats, above the"):
        require_genie(tmp_path / "genie.json")


@pytest.mark.slow
@pytest.mark.parametrize("length", [50, 63, 64, 100])
def test_a_prompt_without_room_is_refused_in_words(genie: Genie, length: int) -> None:
    with pytest.raises(SnapbakeError, match=f"the prompt has {length} tokens and Genie has no ro"):
        genie.answer_tokens(token_ids(length), 4)
    # And the dialog goes on.
    assert genie.answer_tokens(token_ids(5), 2)


@pytest.mark.slow
def test_text_comes_in_pieces(genie: Genie, llama: GenieBuild) -> None:
    prompt = read_chat_prompts(llama.prompts)[0]
    assert genie.encode(prompt.rendered) == list(prompt.ids)
    assert genie.decode(prompt.ids) == prompt.rendered
    pieces: list[str] = []
    text = genie.answer_text(prompt.rendered, 5, pieces.append)
    assert text
    assert "".join(pieces) == text


@pytest.mark.slow
def test_the_gate_refuses_a_prompt_without_room(llama: GenieBuild, tmp_path: Path) -> None:
    content = read_json(llama.prompts)
    content["prompts"][0]["ids"] = token_ids(49)
    write_json(tmp_path / "prompts.json", content)
    with pytest.raises(SnapbakeError, match=r"has 49 tokens .* at most 48 .*genie\.prompts"):
        gate(llama, tmp_path / "genie.json", tmp_path / "prompts.json")
    assert not (tmp_path / "genie.json").exists()


@pytest.mark.slow
def test_another_prompt_than_genies_is_noticed(llama: GenieBuild, tmp_path: Path) -> None:
    content = read_json(llama.prompts)
    content["prompts"] = content["prompts"][:1]
    content["prompts"][0]["ids"][3] += 1
    write_json(tmp_path / "prompts.json", content)
    result = gate(llama, tmp_path / "genie.json", tmp_path / "prompts.json")
    assert not result["passed"]
    with pytest.raises(SnapbakeError, match="Genie makes other tokens of the prompt 'Na"):
        require_genie(tmp_path / "genie.json")


@pytest.mark.slow
def test_a_binary_that_was_cut_off_is_refused(llama: GenieBuild, tmp_path: Path) -> None:
    damaged = tmp_path / "decode.bin"
    damaged.write_bytes(llama.binaries["decode"].read_bytes()[:5000])
    llama = GenieBuild(**{**vars(llama), "binaries": {**llama.binaries, "decode": damaged}})
    with pytest.raises(SnapbakeError, match=r"decode\.bin"), llama.genie(tmp_path):
        pass


def test_the_limit_is_what_the_emulator_moved(tmp_path: Path) -> None:
    cpu = np.array([[5.0, 1.0, 4.0], [0.0, 3.0, 2.5]], np.float32)
    moved = np.array([[5.0, 9.0, 4.25], [0.0, 2.5, 2.5]], np.float32)
    np.savez(tmp_path / "cpu.npz", reading_0_logits=cpu, answer_ids=[1])
    np.savez(tmp_path / "emulator.npz", reading_0_logits=moved, reading_0_cache=[1.0])
    # 0.25 between tokens 0 and 2 of the first row, 0.5 between 1 and 2 of the second.
    assert near_tie_limit(tmp_path / "emulator.npz", tmp_path / "cpu.npz") == 0.5


RESULT = {
    "passed": False,
    "near_tie_limit": 0.1,
    "prompts": [
        {
            "question": "Why?",
            "same_prompt": True,
            "same_text": True,
            "explained": True,
            "differences": [{"position": 2, "genie": 5, "cpu": 6, "margin": 0.7}],
        }
    ],
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"explained": False}, r"'Why\?' otherwise than the CPU at token 3, .* by 0\.7 nats, abo"),
        ({"same_prompt": False}, "other tokens of the prompt 'Why"),
        ({"same_text": False}, "another text of the tokens that answer 'Why"),
    ],
)
def test_what_failed_is_said(tmp_path: Path, change: dict, words: str) -> None:
    answer = {**RESULT["prompts"][0], **change}
    write_json(tmp_path / "genie.json", {**RESULT, "prompts": [answer]})
    with pytest.raises(SnapbakeError, match=words):
        require_genie(tmp_path / "genie.json")
