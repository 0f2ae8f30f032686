"""One encoding a tensor, in both graphs, and a pair that still says what the model says."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

from contract_graphs import (
    CHUNK,
    CONTEXT,
    calibration_ids,
    float_pair,
    graphs_of,
    make_contract,
    quantize_tiny,
    runner_of,
)
from snapbake.decoding import border_names, read_pair
from snapbake.errors import SnapbakeError
from snapbake.external_data import place_of
from snapbake.families import DecoderSpec, read_spec
from snapbake.files import read_json
from snapbake.metrics import score_tokens, summarize
from snapbake.onnx_files import require_external_data
from snapbake.quantize import (
    Encoding,
    activation_encodings,
    cache_chains,
    strip_borders,
    with_shapes_of,
)
from snapbake.reading import decoded_cache, read_text
from snapbake.rope import rope_tables
from snapbake.torch_reference import TorchModel
from tiny_models import make_tiny_model

FAMILIES = ("llama", "qwen2", "qwen3")

limits = st.floats(-1e6, 1e6, width=32)


@settings(deadline=None)
@given(st.tuples(limits, limits).map(sorted), st.sampled_from([8, 16]), st.booleans())
def test_an_encoding_covers_its_range(interval: list[float], bits: int, symmetric: bool) -> None:
    low, high = interval
    encoding = Encoding.of_range(low, high, bits, symmetric)
    assert encoding.scale > 0
    assert encoding.scale == np.float32(encoding.scale)
    assert 0 <= encoding.zero_point < 2**bits
    first = (0 - encoding.zero_point) * encoding.scale
    last = (2**bits - 1 - encoding.zero_point) * encoding.scale
    assert first <= 0 <= last
    # Half a step of the zero point's rounding, and a little of the scale's.
    slack = 0.51 * encoding.scale
    assert first - slack <= low
    assert last + slack >= high
    if symmetric:
        assert encoding.zero_point == 2 ** (bits - 1)
    # Nothing is wasted: the range is no wider than the interval and zero need.
    reach = 2 * max(abs(low), abs(high)) if symmetric else max(high, 0) - min(low, 0)
    assert last - first <= max(reach, 2e-6) * (1 + 2.0 ** (1 - bits)) + slack


@pytest.mark.parametrize("bits", [8, 16])
def test_a_range_of_nothing_has_a_scale(bits: int) -> None:
    for symmetric in (False, True):
        encoding = Encoding.of_range(0.0, 0.0, bits, symmetric)
        assert 0 < encoding.scale < 1e-7


def test_a_symmetric_encoding_is_the_same_numbers_signed() -> None:
    encoding = Encoding.of_range(-3.0, 2.0, 16, symmetric=True)
    unsigned, signed = encoding.override(), encoding.signed_override()
    assert (unsigned["zero_point"].dtype, signed["zero_point"].dtype) == (np.uint16, np.int16)
    assert (unsigned["scale"], signed["scale"]) == (np.float32(3 / 32767), np.float32(3 / 32767))
    assert (unsigned["zero_point"], signed["zero_point"]) == (32768, 0)


@dataclass(frozen=True)
class Qdq:
    """A quantised graph, taken apart."""

    model: onnx.ModelProto
    constants: Mapping[str, onnx.TensorProto]
    producers: Mapping[str, onnx.NodeProto]

    def encoding(self, node: onnx.NodeProto) -> tuple[str, float, int]:
        """Type, scale and zero point of a QuantizeLinear or DequantizeLinear for a tensor."""
        scale, zero_point = (numpy_helper.to_array(self.constants[n]) for n in node.input[1:3])
        return zero_point.dtype.name, float(scale), int(zero_point)

    def activations(self) -> dict[str, tuple[str, float, int]]:
        """The encodings of all tensors that are no weights."""
        return {
            node.output[0]: self.encoding(node)
            for node in self.model.graph.node
            if node.op_type in {"QuantizeLinear", "DequantizeLinear"}
            and node.input[0] not in self.constants
        }


def take_apart(path: Path) -> Qdq:
    model = onnx.load(path)
    return Qdq(
        model,
        {tensor.name: tensor for tensor in model.graph.initializer},
        {name: node for node in model.graph.node for name in node.output},
    )


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def spec(family: str, tiny_models: dict[str, Path]) -> DecoderSpec:
    return read_spec(read_json(tiny_models[family] / "config.json"))


@pytest.fixture(scope="module")
def graphs(family: str, quantized: dict[str, Path]) -> dict[str, Qdq]:
    return {name: take_apart(path) for name, path in graphs_of(quantized[family]).items()}


@pytest.fixture(scope="module")
def encodings(family: str, quantized: dict[str, Path]) -> dict[str, Any]:
    return read_json(quantized[family] / "encodings.json")


def test_the_files_are_sound(family: str, quantized: dict[str, Path]) -> None:
    for path in graphs_of(quantized[family]).values():
        onnx.checker.check_model(path, full_check=True)
        require_external_data(onnx.load(path, load_external_data=False), path)
        assert path.stat().st_size < 1_000_000


def test_the_borders_are_native(
    spec: DecoderSpec,
    graphs: dict[str, Qdq],
    encodings: dict[str, Any],
    family: str,
    contract: dict[str, Path],
) -> None:
    tensors = encodings["tensors"]
    assert tensors.keys() == {"input_ids", *border_names(spec.layers)}
    for name, graph in graphs.items():
        plain = onnx.load(contract[family] / f"{name}.onnx", load_external_data=False).graph
        found = graph.model.graph
        for values, originals in ((found.input, plain.input), (found.output, plain.output)):
            assert [value.name for value in values] == [value.name for value in originals]
            for value, original in zip(values, originals, strict=True):
                kind, expected = value.type.tensor_type, original.type.tensor_type
                assert kind.shape == expected.shape
                dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
                assert dtype == tensors[value.name]["dtype"]
                assert dtype == ("int32" if value.name == "input_ids" else "uint16")


def test_the_encodings_file_says_what_the_graphs_do(
    graphs: dict[str, Qdq], encodings: dict[str, Any]
) -> None:
    for graph in graphs.values():
        for node in graph.model.graph.node:
            if node.op_type == "DequantizeLinear":
                border = encodings["tensors"].get(node.input[0])
            else:
                border = encodings["tensors"].get(node.output[0])
            if border:
                assert graph.encoding(node) == (
                    border["dtype"],
                    border["scale"],
                    border["zero_point"],
                )
    assert encodings["mask_value"] <= -100


def test_the_cache_keeps_its_encoding(spec: DecoderSpec, encodings: dict[str, Any]) -> None:
    """What leaves a graph enters the next without requantising, and is joined with it as it is."""
    tensors = encodings["tensors"]
    for layer in range(spec.layers):
        for kind in ("key", "value"):
            entry = tensors[f"past_{kind}_{layer}_in"]
            assert entry == tensors[f"past_{kind}_{layer}_out"]
            assert entry["zero_point"] == 32768
        for names in cache_chains(layer):
            found = {
                (entry["dtype"], entry["scale"], entry["zero_point"])
                for name, entry in encodings["activations"].items()
                if name in names
            }
            assert len(found) == 1


def test_both_graphs_have_the_same_encodings(graphs: dict[str, Qdq]) -> None:
    prefill, decode = graphs["prefill"], graphs["decode"]
    assert prefill.activations() == decode.activations()
    assert prefill.constants.keys() == decode.constants.keys()
    for name, tensor in prefill.constants.items():
        if tensor.data_type != TensorProto.INT64:
            other = decode.constants[name]
            assert (tensor.data_type, tensor.dims) == (other.data_type, other.dims)
            assert tensor.raw_data == other.raw_data, name
    nodes = [[n.SerializeToString() for n in graph.model.graph.node] for graph in graphs.values()]
    assert nodes[0] == nodes[1]


def test_both_graphs_share_one_data_file(family: str, quantized: dict[str, Path]) -> None:
    places = []
    for path in graphs_of(quantized[family]).values():
        model = onnx.load(path, load_external_data=False)
        places.append({tensor.name: place_of(tensor) for tensor in model.graph.initializer})
    assert places[0] == places[1]
    lengths = [place.length for place in places[0].values() if place]
    assert (quantized[family] / "weights.data").stat().st_size == sum(lengths)


def test_every_activation_has_16_bits(graphs: dict[str, Qdq]) -> None:
    """Each operator reads and writes real numbers that come from 16-bit codes."""
    graph = graphs["prefill"]
    kinds = {kind for kind, _, _ in graph.activations().values()}
    assert kinds == {"uint16", "int16"}
    plumbing = {"QuantizeLinear", "DequantizeLinear"}
    for node in graph.model.graph.node:
        if node.op_type in plumbing:
            continue
        for name in node.input:
            if name in graph.constants:
                assert graph.constants[name].data_type == TensorProto.INT64, name
            elif name != "input_ids":
                assert graph.producers[name].op_type == "DequantizeLinear", name


def test_a_matmul_reads_the_cache_as_int16(graphs: dict[str, Qdq]) -> None:
    """The HTP wants the second operand of a 16x16-bit MatMul signed and symmetric."""
    for graph in graphs.values():
        products = [node for node in graph.model.graph.node if node.op_type == "MatMul"]
        assert len(products) == 4
        for node in products:
            first, second = (graph.encoding(graph.producers[name]) for name in node.input)
            assert first[0] == "uint16"
            assert (second[0], second[2]) == ("int16", 0)


def test_linear_weights_have_a_scale_for_each_channel(
    graphs: dict[str, Qdq], family: str, contract: dict[str, Path]
) -> None:
    graph = graphs["prefill"]
    plain = {
        tensor.name: tensor
        for tensor in onnx.load(contract[family] / "prefill.onnx").graph.initializer
    }
    convolutions = [node for node in graph.model.graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 2 * 7 + 1
    for node in convolutions:
        source = graph.producers[node.input[1]]
        (axis,) = (each.i for each in source.attribute if each.name == "axis")
        codes, scale, zero = (numpy_helper.to_array(graph.constants[name]) for name in source.input)
        assert axis == 0
        assert codes.dtype == np.int8
        assert scale.shape == codes.shape[:1]
        assert not zero.any()
        weight = numpy_helper.to_array(plain[f"{node.name}.weight"])
        error = np.abs(codes * scale[:, None, None, None] - weight).max(axis=(1, 2, 3))
        assert np.all(error <= 0.51 * scale), node.name
        if len(node.input) > 2:
            bias_codes, bias_scale, _ = (
                numpy_helper.to_array(graph.constants[name])
                for name in graph.producers[node.input[2]].input
            )
            assert bias_codes.dtype == np.int32
            bias = numpy_helper.to_array(plain[f"{node.name}.bias"])
            np.testing.assert_allclose(bias_codes * bias_scale, bias, atol=1e-5)


def test_gains_and_embedding_have_16_bits(graphs: dict[str, Qdq]) -> None:
    graph = graphs["prefill"]
    for node in graph.model.graph.node:
        if node.op_type in {"RMSNormalization", "Gather"}:
            name = node.input[0 if node.op_type == "Gather" else 1]
            assert graph.encoding(graph.producers[name])[0] == "uint16", node.name


def test_the_pair_agrees_with_the_float_graphs(
    family: str,
    spec: DecoderSpec,
    tiny_models: dict[str, Path],
    contract: dict[str, Path],
    quantized: dict[str, Path],
) -> None:
    ids = calibration_ids()[0]
    plain = float_pair(tiny_models[family])
    pair = read_pair(spec, CHUNK, CONTEXT, quantized[family] / "encodings.json")
    expected, reference = read_text(plain, runner_of(contract[family]).run, ids)
    found, decoder = read_text(pair, runner_of(quantized[family]).run, ids)
    figures = summarize([(0, score_tokens(expected, found, ids))])
    assert figures["kl_divergence"] < 0.01
    assert figures["top1_agreement"] > 0.9
    assert figures["logits_cosine"] > 0.998
    cache = decoded_cache(plain, reference)
    for name, value in decoded_cache(pair, decoder).items():
        assert np.abs(value - cache[name]).max() < 0.1 * np.ptp(cache[name]), name


def test_scaled_tables_are_not_cut_off(tmp_path: Path) -> None:
    """yarn multiplies cosine and sine by a factor above one."""
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 128}
    checkpoint = make_tiny_model(tmp_path / "checkpoint", "llama", rope_scaling=yarn)
    graphs = make_contract(checkpoint, tmp_path / "htp")
    folder = quantize_tiny(checkpoint, graphs, tmp_path / "w8a16")
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, CHUNK, CONTEXT, folder / "encodings.json")
    tables = rope_tables(spec.rope, spec.head_dim, np.arange(CONTEXT))
    assert tables[0].max() > 1.2
    for name, table in zip(("position_ids_cos", "position_ids_sin"), tables, strict=True):
        border = pair.borders[name]
        assert np.abs(border.decode(border.encode(table)) - table).max() < 1e-4
    ids = calibration_ids()[0]
    logits, _ = read_text(pair, runner_of(folder).run, ids)
    expected = TorchModel(checkpoint, 2).read(ids).logits
    assert summarize([(0, score_tokens(expected, logits, ids))])["kl_divergence"] < 0.02


def test_a_mask_hides_whatever_the_scores_are(tmp_path: Path) -> None:
    """Biases can make every score of a head -200; a hidden position's is 0 and the mask."""
    checkpoint = make_tiny_model(tmp_path / "checkpoint", "qwen2")
    tensors = load_file(checkpoint / "model.safetensors")
    for layer in range(2):
        for letter, value in (("q", 40.0), ("k", -40.0)):
            bias = tensors[f"model.layers.{layer}.self_attn.{letter}_proj.bias"]
            bias.view(-1, 64)[:, 31] = value  # the pair of channels that turns slowest
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    graphs = make_contract(checkpoint, tmp_path / "htp")
    folder = quantize_tiny(checkpoint, graphs, tmp_path / "w8a16")
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, CHUNK, CONTEXT, folder / "encodings.json")
    assert pair.mask_value < -200
    ids = calibration_ids()[0]
    logits, _ = read_text(pair, runner_of(folder).run, ids)
    expected = TorchModel(checkpoint, 2).read(ids).logits
    assert summarize([(0, score_tokens(expected, logits, ids))])["kl_divergence"] < 0.02


def test_a_softmax_hides_what_is_masked(
    spec: DecoderSpec, encodings: dict[str, Any], family: str, quantized: dict[str, Path]
) -> None:
    """The largest score, masked, is at the bottom of the range, 40 below the lowest row."""
    pair = read_pair(spec, CHUNK, CONTEXT, quantized[family] / "encodings.json")
    for layer in range(spec.layers):
        scores, masked = (
            encodings["activations"][f"layers.{layer}.{name}"] for name in ("scores", "masked")
        )
        highest = (65535 - scores["zero_point"]) * scores["scale"]
        lowest = -masked["zero_point"] * masked["scale"]
        assert highest + pair.mask_value <= lowest + masked["scale"]
        assert lowest > -100


def test_two_builds_give_the_same_bytes(
    tiny_models: dict[str, Path], contract: dict[str, Path], tmp_path: Path
) -> None:
    written = []
    for name in ("one", "quite_another_place"):
        folder = quantize_tiny(tiny_models["qwen2"], graphs_of(contract["qwen2"]), tmp_path / name)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]
    assert written[0].keys() == {"prefill.onnx", "decode.onnx", "weights.data", "encodings.json"}


def loaded(folder: Path) -> list[onnx.ModelProto]:
    return [onnx.load(path, load_external_data=False) for path in graphs_of(folder).values()]


def test_graphs_of_another_model_get_no_shapes(contract: dict[str, Path]) -> None:
    prefill, decode = loaded(contract["llama"])
    for other in ("qwen2", "qwen3"):
        with pytest.raises(ValueError, match="differ in more than their shapes"):
            with_shapes_of(prefill, prefill, loaded(contract[other])[1])
    assert [value.name for value in with_shapes_of(prefill, prefill, decode).graph.input]


def test_graphs_with_another_attribute_or_other_weights_get_no_shapes(
    contract: dict[str, Path],
) -> None:
    prefill, decode = loaded(contract["llama"])
    for node in decode.graph.node:
        if node.op_type == "Softmax":
            node.attribute[0].i = 2
    with pytest.raises(ValueError, match="differ in more than their shapes"):
        with_shapes_of(prefill, prefill, decode)
    _, decode = loaded(contract["llama"])
    tensor = next(each for each in decode.graph.initializer if each.name == "lm_head.weight")
    next(entry for entry in tensor.external_data if entry.key == "offset").value = "0"
    with pytest.raises(ValueError, match="differ in more than their shapes"):
        with_shapes_of(prefill, prefill, decode)


def test_a_float_graph_with_other_shapes_is_the_other_graph(contract: dict[str, Path]) -> None:
    prefill, decode = loaded(contract["qwen3"])
    result = with_shapes_of(prefill, prefill, decode)
    assert list(result.graph.input) == list(decode.graph.input)
    assert list(result.graph.output) == list(decode.graph.output)
    assert {t.name: t for t in result.graph.initializer} == {
        t.name: t for t in decode.graph.initializer
    }


def test_a_graph_that_is_not_quantised_has_no_native_borders(contract: dict[str, Path]) -> None:
    prefill, _ = loaded(contract["llama"])
    with pytest.raises(SnapbakeError, match=r"input attention_mask is not quantised as a whole"):
        strip_borders(prefill)


def test_a_scale_that_is_no_number_is_refused(quantized: dict[str, Path]) -> None:
    model = onnx.load(quantized["llama"] / "prefill.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name == "layers.1.gated_scale":
            tensor.CopyFrom(numpy_helper.from_array(np.array(np.inf, np.float32), tensor.name))
    with pytest.raises(SnapbakeError, match=r"scale of layers\.1\.gated came out as inf"):
        activation_encodings(model)


def test_missing_weights_are_named(
    tiny_models: dict[str, Path], contract: dict[str, Path], tmp_path: Path
) -> None:
    for graph, path in graphs_of(contract["llama"]).items():
        (tmp_path / f"{graph}.onnx").write_bytes(path.read_bytes())
    output = tmp_path / "out"
    with pytest.raises(SnapbakeError, match=r"weights\.data, the weights of .* is missing"):
        quantize_tiny(tiny_models["llama"], graphs_of(tmp_path), output)
    assert not output.exists()
