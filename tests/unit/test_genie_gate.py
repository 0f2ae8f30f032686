"""Genie on the emulator answers as the CPU does, for every family, and what cannot be is said."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract_graphs import make_contract, token_ids
from genie_builds import QUESTIONS, GenieBuild, gate, make_genie_build
from snapbake.chat_prompts import read_chat_prompts
from snapbake.decoding import Decoder
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json
from snapbake.fp16 import convert_fp16
from snapbake.genie import Genie
from snapbake.genie_gate import ask
from snapbake.genie_verdict import judge_genie
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
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> GenieBuild:
    """A Llama of one layer in fp16, chunks of 16 in a context of 64."""
    return make_genie_build(tmp_path_factory.mktemp("genie"), "llama", "fp16")


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
    assert result["verdict"]["passed"], result
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
@pytest.mark.parametrize("context", [512, 1024])
def test_contexts_of_a_phone(context: int, tmp_path: Path) -> None:
    """Prompts of one chunk of 128, of several, and one whose answer fills the context."""
    build = make_genie_build(tmp_path, "qwen3", "fp16", chunk=128, context=context)
    longest = context - build.chunk
    run, stop = build.cpu().run, build.plain.stop_ids
    with build.genie(tmp_path) as genie:
        for length, count in ((100, 4), (300, 4), (longest, context)):
            prompt = token_ids(length, seed=length)
            answer = genie.answer_tokens(prompt, count)
            assert answer[:1] == Decoder(build.pair, run).generate(prompt, 1, stop)
            assert len(answer) == min(count, context - length) or answer[-1] in stop
        with pytest.raises(SnapbakeError, match=f"has {longest + 2} tokens and Genie has no room"):
            genie.answer_tokens(token_ids(longest + 2), 4)


@pytest.mark.slow
def test_another_model_than_genies_is_noticed(llama: GenieBuild, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", "llama", seed=1, layers=1)
    graphs = make_contract(other, tmp_path / "htp", llama.chunk, llama.context)
    convert_fp16(graphs["prefill"], graphs["decode"], tmp_path / "fp16")
    result = gate(llama, tmp_path / "genie.json", graphs=tmp_path / "fp16")
    (failure, *_) = result["verdict"]["failures"]
    assert re.search(r"otherwise than the CPU at token \d+, .* nats, above the", failure)


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
    (failure,) = result["verdict"]["failures"]
    assert failure.startswith("Genie makes other tokens of the prompt 'Na")


@pytest.mark.slow
def test_an_answer_that_does_not_end_is_noticed(llama: GenieBuild, genie: Genie) -> None:
    """Genie was not told of the token that is to end it, here the CPU's first."""
    prompt = read_chat_prompts(llama.prompts)[0]
    run = llama.cpu().run
    tokens = Decoder(llama.pair, run).generate(list(prompt.ids), 4, llama.plain.stop_ids)
    template = replace(llama.plain, stop_ids=(tokens[0],))
    answer = ask(genie, llama.pair, run, template, prompt, 4)
    assert answer["cpu"]["tokens"] == tokens[:1]
    assert answer["genie"]["tokens"][:1] == tokens[:1]
    assert len(answer["genie"]["tokens"]) > 1
    assert not answer["stopped"]
    (failure,) = judge_genie({"prompts": [answer]}, 0.1)["failures"]
    assert "goes on after the token that should end its answer" in failure


@pytest.mark.slow
def test_a_binary_that_was_cut_off_is_refused(llama: GenieBuild, tmp_path: Path) -> None:
    damaged = tmp_path / "decode.bin"
    damaged.write_bytes(llama.binaries["decode"].read_bytes()[:5000])
    llama = GenieBuild(**{**vars(llama), "binaries": {**llama.binaries, "decode": damaged}})
    with pytest.raises(SnapbakeError, match=r"decode\.bin"), llama.genie(tmp_path):
        pass
