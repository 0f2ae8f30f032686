"""The contract of the graphs: names, types, shapes, and that only shapes differ."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from contract_graphs import CHUNK, CONTEXT, make_contract
from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, read_spec
from snapbake.files import read_json
from snapbake.htp_graph import build_decoder, write_decoder
from snapbake.onnx_files import external_tensors, require_external_data, shape_of
from tiny_models import make_tiny_model

FAMILIES = ("llama", "qwen2", "qwen3")


def spec_of(checkpoint: Path) -> DecoderSpec:
    return read_spec(read_json(checkpoint / "config.json"))


def described(values: list[onnx.ValueInfoProto]) -> dict[str, tuple[int, list[int | str]]]:
    return {value.name: (value.type.tensor_type.elem_type, shape_of(value)) for value in values}


def contract_of(spec: DecoderSpec, tokens: int, context: int) -> tuple[dict, dict]:
    """The contract as design.md has it: inputs and outputs with types and shapes."""
    real, past = TensorProto.FLOAT, context - tokens
    heads, width = spec.kv_heads, spec.head_dim
    inputs = {
        "input_ids": (TensorProto.INT32, [1, tokens]),
        "attention_mask": (real, [1, 1, tokens, context]),
        "position_ids_cos": (real, [1, 1, tokens, width // 2]),
        "position_ids_sin": (real, [1, 1, tokens, width // 2]),
    }
    outputs = {"logits": (real, [1, tokens, spec.vocab_size])}
    for layer in range(spec.layers):
        inputs[f"past_key_{layer}_in"] = (real, [1, heads, width, past])
        inputs[f"past_value_{layer}_in"] = (real, [1, heads, past, width])
        outputs[f"past_key_{layer}_out"] = (real, [1, heads, width, tokens])
        outputs[f"past_value_{layer}_out"] = (real, [1, heads, tokens, width])
    return inputs, outputs


@pytest.mark.parametrize("graph", ["prefill", "decode"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_borders_are_the_contract(
    family: str, graph: str, tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    model = onnx.load(contract[family] / f"{graph}.onnx", load_external_data=False)
    tokens = {"prefill": CHUNK, "decode": 1}[graph]
    inputs, outputs = contract_of(spec_of(tiny_models[family]), tokens, CONTEXT)
    assert described(model.graph.input) == inputs
    assert described(model.graph.output) == outputs


@pytest.mark.parametrize("graph", ["prefill", "decode"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_inside_is_what_the_htp_takes(
    family: str, graph: str, contract: dict[str, Path]
) -> None:
    path = contract[family] / f"{graph}.onnx"
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(path, full_check=True)
    require_external_data(model, path)
    inner = described(model.graph.value_info)
    produced = {name for node in model.graph.node for name in node.output}
    assert inner.keys() | {value.name for value in model.graph.output} == produced
    for name, (kind, shape) in inner.items():
        assert kind == TensorProto.FLOAT, name
        assert len(shape) <= 4, name
        assert all(isinstance(size, int) and size > 0 for size in shape), name
    # What is int64 is read by Reshape and Split alone, which need it as a constant.
    counted = {t.name for t in model.graph.initializer if t.data_type == TensorProto.INT64}
    for node in model.graph.node:
        assert not counted & set(node.input) or node.op_type in {"Reshape", "Split"}, node.name
    kinds = {node.op_type for node in model.graph.node}
    assert {"RMSNormalization", "Conv"} < kinds
    assert not {"Where", "IsNaN", "Gemm", "Pow", "Sqrt"} & kinds
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 23)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_in_the_shared_file(family: str, contract: dict[str, Path]) -> None:
    index = read_json(contract[family] / "weights.json")
    places = []
    for graph in ("prefill", "decode"):
        path = contract[family] / f"{graph}.onnx"
        model = onnx.load(path, load_external_data=False)
        assert path.stat().st_size < 200_000
        inline = {t.data_type for t in model.graph.initializer if not t.external_data}
        assert inline == {TensorProto.INT64}
        places.append({tensor.name: place for tensor, place in external_tensors(model)})
    assert places[0] == places[1]
    assert places[0].keys() == index["tensors"].keys()
    assert {place.location for place in places[0].values()} == {"weights.data"}


@pytest.mark.parametrize("family", FAMILIES)
def test_only_shapes_differ_between_the_graphs(family: str, contract: dict[str, Path]) -> None:
    nodes = []
    for graph in ("prefill", "decode"):
        model = onnx.load(contract[family] / f"{graph}.onnx", load_external_data=False)
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
        nodes.append([node.SerializeToString() for node in model.graph.node])
    assert nodes[0] == nodes[1]


@pytest.mark.parametrize(("tokens", "context"), [(16, 16), (17, 16), (0, 16), (-1, 16)])
def test_a_chunk_that_leaves_no_past_is_refused(
    tokens: int, context: int, tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    index = read_json(contract["llama"] / "weights.json")
    with pytest.raises(SnapbakeError, match=rf"of {tokens} tokens .* found {context}; raise"):
        build_decoder(spec_of(tiny_models["llama"]), tokens, context, index)


def test_a_graph_away_from_its_weights_is_refused(
    tiny_models: dict[str, Path], contract: dict[str, Path], tmp_path: Path
) -> None:
    index, output = contract["llama"] / "weights.json", tmp_path / "prefill.onnx"
    with pytest.raises(SnapbakeError, match=r"prefill\.onnx must lie in the folder of .*weights"):
        write_decoder(spec_of(tiny_models["llama"]), 16, 64, index, output)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"layers": 3}, r"weights\.data has no weight layers\.2\.input_norm\.weight"),
        ("llama", {"layers": 1}, r"has a weight layers\.1\.\w+\.weight, which the model"),
        ("llama", {"qkv_bias": True}, r"has no weight layers\.0\.q_proj\.bias"),
        ("qwen2", {"qkv_bias": False}, r"has a weight layers\.0\.k_proj\.bias"),
        ("qwen3", {"qk_norm": False}, r"has a weight layers\.0\.k_norm\.weight"),
    ],
)
def test_weights_of_another_model_are_refused(
    family: str,
    changes: dict[str, Any],
    message: str,
    tiny_models: dict[str, Path],
    contract: dict[str, Path],
) -> None:
    spec = replace(spec_of(tiny_models[family]), **changes)
    index = read_json(contract[family] / "weights.json")
    with pytest.raises(SnapbakeError, match=message):
        build_decoder(spec, CHUNK, CONTEXT, index)


def test_weights_of_another_size_are_refused(
    tiny_models: dict[str, Path], contract: dict[str, Path], tmp_path: Path
) -> None:
    spec = replace(spec_of(tiny_models["llama"]), hidden_size=192, heads=3)
    index = Path(shutil.copy(contract["llama"] / "weights.json", tmp_path))
    with pytest.raises(SnapbakeError, match=r"weights\.json have other shapes than the model"):
        write_decoder(spec, CHUNK, CONTEXT, index, tmp_path / "prefill.onnx")
    assert list(tmp_path.iterdir()) == [index]


def test_the_graph_grows_with_the_layers_alone(tmp_path: Path) -> None:
    sizes = []
    for layers in (1, 2, 3):
        checkpoint = make_tiny_model(tmp_path / f"m{layers}", "qwen3", layers=layers)
        graphs = make_contract(checkpoint, tmp_path / f"h{layers}")
        model = onnx.load(graphs["prefill"], load_external_data=False)
        sizes.append(len(model.graph.node))
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
