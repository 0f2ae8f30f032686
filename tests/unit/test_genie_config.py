"""What Genie would refuse without a word, or take and answer nonsense, is said before."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, RopeSpec, read_spec
from snapbake.genie_config import genie_config, htp_extensions, require_fit
from snapbake.qnn_system import BinaryInfo, GraphInfo, TensorInfo
from tiny_models import tiny_config

CONTEXT, CHUNK, LAYERS, VOCABULARY = 64, 16, 2, 512
SPEC = read_spec(tiny_config("qwen3", layers=LAYERS, vocab=VOCABULARY, tie=True))


def tensor(name: str, *shape: int, dtype: str = "ufix16", scale: float = 0.5) -> TensorInfo:
    if dtype in ("int32", "float16"):
        return TensorInfo(name, dtype, shape, None, None)
    return TensorInfo(name, dtype, shape, scale, -32768)


def graph(name: str, count: int) -> GraphInfo:
    """Return the description of a right graph of the tiny model."""
    past = CONTEXT - count
    inputs = [
        tensor("input_ids", 1, count, dtype="int32"),
        tensor("attention_mask", 1, 1, count, CONTEXT),
        tensor("position_ids_cos", 1, 1, count, 32),
        tensor("position_ids_sin", 1, 1, count, 32),
    ]
    outputs = [tensor("logits", 1, count, VOCABULARY)]
    for layer in range(LAYERS):
        inputs.append(tensor(f"past_key_{layer}_in", 1, 1, 64, past))
        inputs.append(tensor(f"past_value_{layer}_in", 1, 1, past, 64))
        outputs.append(tensor(f"past_key_{layer}_out", 1, 1, 64, count))
        outputs.append(tensor(f"past_value_{layer}_out", 1, 1, count, 64))
    return GraphInfo(name, tuple(inputs), tuple(outputs))


def binary(*graphs: GraphInfo) -> BinaryInfo:
    return BinaryInfo("v2.51.0", 57, "4.0.6", "2.40.0", "5.51.0", graphs)


def config(**changes: Any) -> dict[str, Any]:
    return genie_config(SPEC, CONTEXT, [2], ["a.bin", "b.bin"], **changes)


def binaries() -> dict[str, BinaryInfo]:
    return {"a.bin": binary(graph("prefill__", CHUNK)), "b.bin": binary(graph("decode__", 1))}


def changed(info: BinaryInfo, name: str, /, **changes: Any) -> BinaryInfo:
    """Return a binary with one tensor of its graph changed."""
    (old,) = info.graphs

    def change(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        return tuple(replace(each, **changes) if each.name == name else each for each in tensors)

    return binary(replace(old, inputs=change(old.inputs), outputs=change(old.outputs)))


def without(info: BinaryInfo, name: str) -> BinaryInfo:
    (old,) = info.graphs
    inputs = tuple(each for each in old.inputs if each.name != name)
    outputs = tuple(each for each in old.outputs if each.name != name)
    return binary(replace(old, inputs=inputs, outputs=outputs))


def test_what_fits_is_taken() -> None:
    require_fit(config(), binaries(), SPEC)
    both = {"a.bin": binary(graph("prefill_", CHUNK), graph("decode_", 1))}
    require_fit(genie_config(SPEC, CONTEXT, [2], ["a.bin"]), both, SPEC)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("input_ids", {"dtype": "int64"}, "input_ids .* is int64 and Genie takes int32"),
        ("logits", {"shape": (1, 1, VOCABULARY)}, r"logits .* \[1, 1, 512\] .* \[1, 16, 512\]"),
        ("position_ids_cos", {"shape": (1, 1, CHUNK, 64)}, "position_ids_cos .* has the shape"),
        ("attention_mask", {"dtype": "int32"}, "attention_mask .* is int32"),
        ("past_key_1_in", {"shape": (1, 1, 48, 64)}, "past_key_1_in .* has the shape"),
        ("past_key_1_in", {"scale": 0.25}, "the cache could not be handed on"),
        ("past_value_0_out", {"offset": 0}, "the cache could not be handed on"),
        ("past_key_0_out", {"name": "present_key_0"}, "lacks the output past_key_0_out"),
        ("input_ids", {"name": "ids"}, "has no input_ids"),
    ],
)
def test_a_wrong_tensor_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    given = binaries()
    given["a.bin"] = changed(given["a.bin"], name, **changes)
    with pytest.raises(SnapbakeError, match=words):
        require_fit(config(), given, SPEC)


@pytest.mark.parametrize("name", ["logits", "position_ids_sin", "past_value_0_in"])
def test_a_missing_tensor_is_named(name: str) -> None:
    given = binaries()
    given["b.bin"] = without(given["b.bin"], name)
    with pytest.raises(SnapbakeError, match=name):
        require_fit(config(), given, SPEC)


def test_a_context_above_the_graphs_is_refused() -> None:
    wrong = config()
    wrong["dialog"]["context"]["size"] = CONTEXT + 1
    with pytest.raises(SnapbakeError, match=r"context\.size 65 is above the 64 tokens"):
        require_fit(wrong, binaries(), SPEC)


def test_two_graphs_for_one_size_are_refused() -> None:
    given = {"a.bin": binary(graph("one", 1)), "b.bin": binary(graph("two", 1))}
    with pytest.raises(SnapbakeError, match="both take 1 tokens at a time"):
        require_fit(config(), given, SPEC)


def test_prefill_alone_is_refused() -> None:
    given = {"a.bin": binary(graph("prefill", CHUNK))}
    with pytest.raises(SnapbakeError, match="no graph takes one token"):
        require_fit(genie_config(SPEC, CONTEXT, [2], ["a.bin"]), given, SPEC)


def test_other_files_than_named_are_refused() -> None:
    with pytest.raises(SnapbakeError, match=r"names the binaries a\.bin, b\.bin"):
        require_fit(config(), {"a.bin": binary(graph("decode", 1))}, SPEC)


@pytest.mark.parametrize("path", [("dialog",), ("dialog", "engine", "model", "binary")])
def test_an_incomplete_configuration_is_refused(path: tuple[str, ...]) -> None:
    broken = copy.deepcopy(config())
    inner = broken
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    with pytest.raises(SnapbakeError, match=r"genie_config\.json lacks"):
        require_fit(broken, binaries(), SPEC)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 500}, "has 512 tokens and heads of 64, the model 500"),
        ({"layers": 3}, "another number of layers than the model's 3"),
        ({"layers": 1}, "another number of layers than the model's 1"),
    ],
)
def test_binaries_of_another_model_are_refused(change: dict[str, Any], words: str) -> None:
    other: DecoderSpec = replace(SPEC, **change)
    with pytest.raises(SnapbakeError, match=words):
        require_fit(config(), binaries(), other)


def positions(rope: RopeSpec) -> dict[str, Any]:
    built = genie_config(replace(SPEC, rope=rope), CONTEXT, [2], ["a.bin"])
    return built["dialog"]["engine"]["model"]["positional-encoding"]


def test_positions_are_said_in_genies_words() -> None:
    plain = {"type": "rope", "rope-dim": 32, "rope-theta": 1000000}
    assert positions(RopeSpec(1e6)) == plain
    assert positions(RopeSpec(1e6, "dynamic", 2.0, CONTEXT)) == plain
    assert positions(RopeSpec(1e6, "linear", 4.0))["rope-scaling"] == {
        "rope-type": "linear",
        "factor": 4.0,
    }
    assert positions(RopeSpec(5e5, "llama3", 8.0, 8192, 1.0, 4.0))["rope-scaling"] == {
        "rope-type": "llama3",
        "factor": 8.0,
        "low-freq-factor": 1.0,
        "high-freq-factor": 4.0,
        "original-max-position-embeddings": 8192,
    }


@pytest.mark.parametrize("rope", [RopeSpec(1e4, "yarn", 4.0), RopeSpec(1e4, "dynamic", 2.0, 32)])
def test_positions_that_genie_computes_otherwise_are_refused(rope: RopeSpec) -> None:
    with pytest.raises(SnapbakeError, match=f"rope scaling is '{rope.kind}'"):
        positions(rope)


def test_the_extensions_name_the_chip() -> None:
    (device,) = htp_extensions(69, 79)["devices"]
    assert (device["soc_model"], device["dsp_arch"]) == (69, "v79")
