"""The fp16 recipe: everything in 16 bits, close to fp32, and nothing that 16 bits cannot hold."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from contract_graphs import CHUNK, CONTEXT, float_pair, make_contract, runner_of, token_ids
from snapbake.decoding import read_pair
from snapbake.errors import SnapbakeError
from snapbake.external_data import ExternalWeights, place_of
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.fp16 import MASK_VALUE, convert_fp16
from snapbake.metrics import score_tokens, summarize
from snapbake.onnx_files import require_external_data
from snapbake.reading import read_text
from tiny_models import make_tiny_model

FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize("graph", ["prefill", "decode"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_real_number_has_16_bits(
    family: str, graph: str, contract: dict[str, Path], fp16: dict[str, Path]
) -> None:
    path = fp16[family] / f"{graph}.onnx"
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path, load_external_data=False)
    require_external_data(model, path)
    borders = [*model.graph.input, *model.graph.output]
    kinds = {value.name: value.type.tensor_type.elem_type for value in borders}
    assert kinds.pop("input_ids") == TensorProto.INT32
    assert set(kinds.values()) == {TensorProto.FLOAT16}
    kinds |= {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    assert TensorProto.FLOAT not in {
        *kinds.values(),
        *(tensor.data_type for tensor in model.graph.initializer),
    }
    plain = onnx.load(contract[family] / f"{graph}.onnx", load_external_data=False)
    assert list(model.graph.node) == list(plain.graph.node)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_rounded_once_and_shared(
    family: str, contract: dict[str, Path], fp16: dict[str, Path]
) -> None:
    places = []
    for graph in ("prefill", "decode"):
        plain = onnx.load(contract[family] / f"{graph}.onnx", load_external_data=False)
        half = onnx.load(fp16[family] / f"{graph}.onnx", load_external_data=False)
        expected = ExternalWeights(plain, contract[family])
        found = ExternalWeights(half, fp16[family])
        assert list(found.names()) == list(expected.names())
        for name in found.names():
            rounded = expected[name].astype(np.float16)
            np.testing.assert_array_equal(found[name], rounded, strict=True)
        places.append({tensor.name: place_of(tensor) for tensor in half.graph.initializer})
    assert places[0] == places[1]
    size = (fp16[family] / "weights.data").stat().st_size
    assert size == sum(place.length for place in places[0].values() if place)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graphs_agree_with_fp32(
    family: str,
    tiny_models: dict[str, Path],
    contract: dict[str, Path],
    fp16: dict[str, Path],
) -> None:
    checkpoint = tiny_models[family]
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, CHUNK, CONTEXT, fp16[family] / "encodings.json")
    assert pair.mask_value == MASK_VALUE
    ids = token_ids(CONTEXT)
    expected, _ = read_text(float_pair(checkpoint), runner_of(contract[family]).run, ids)
    found, _ = read_text(pair, runner_of(fp16[family]).run, ids)
    figures = summarize([(0, score_tokens(expected, found, ids))])
    assert figures["logits_cosine"] > 0.9995
    assert figures["kl_divergence"] < 2e-3
    assert figures["top1_agreement"] > 0.97


def test_the_encodings_name_every_border(fp16: dict[str, Path]) -> None:
    content = read_json(fp16["qwen3"] / "encodings.json")
    model = onnx.load(fp16["qwen3"] / "prefill.onnx", load_external_data=False)
    names = {value.name for value in [*model.graph.input, *model.graph.output]}
    assert content["tensors"] == {name: {"dtype": "float16"} for name in names} | {
        "input_ids": {"dtype": "int32"}
    }


def test_a_weight_too_large_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = make_tiny_model(tmp_path / "checkpoint", "llama")
    graphs = make_contract(checkpoint, tmp_path / "htp")
    place = read_json(tmp_path / "htp" / "weights.json")["tensors"]["layers.1.o_proj.weight"]
    with (tmp_path / "htp" / "weights.data").open("r+b") as stream:
        stream.seek(place["offset"] + 4 * 77)
        stream.write(np.float32(-65505.0).tobytes())
    output = tmp_path / "out"
    with pytest.raises(
        SnapbakeError, match=r"weight layers\.1\.o_proj\.weight reaches 6\.55e\+04, fp16 .* 65504"
    ):
        convert_fp16(graphs["prefill"], graphs["decode"], output)
    assert not any(output.iterdir())


def test_two_folders_give_the_same_bytes(contract: dict[str, Path], tmp_path: Path) -> None:
    written = []
    for name in ("one", "quite_another_place"):
        folder = contract["qwen2"]
        convert_fp16(folder / "prefill.onnx", folder / "decode.onnx", tmp_path / name)
        written.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert written[0].keys() == {"prefill.onnx", "decode.onnx", "weights.data", "encodings.json"}
