"""The rotation is orthogonal, and folding changes nothing that the model says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from contract_graphs import CHUNK, float_pair, make_contract, runner_of, token_ids
from snapbake.decoding import Decoder
from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.htp_weights import htp_tensors, rotation_matrix, write_htp_weights
from snapbake.reading import decoded_cache
from snapbake.torch_reference import TorchModel
from tiny_models import make_tiny_model

SIZES = (1, 2, 3, 64, 96, 128, 576, 896, 960, 1024, 1152, 1536, 2560)


@pytest.mark.parametrize("size", SIZES)
def test_the_rotation_is_orthogonal(size: int) -> None:
    matrix = rotation_matrix(size)
    assert matrix.shape == (size, size)
    assert np.abs(matrix @ matrix.T - np.eye(size)).max() < 1e-13


@pytest.mark.parametrize("size", SIZES)
def test_the_rotation_is_the_same_every_time(size: int) -> None:
    assert rotation_matrix(size).tobytes() == rotation_matrix(size).tobytes()


# What the architectures allow, on top of what tiny_models always does (norm weights that are not
# one, biases that are not zero, huge channels, 2 query heads on one key/value head).
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "untied": ("llama", {"tie": False}),
    "untied qwen3": ("qwen3", {"tie": False}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "grouped queries": ("qwen2", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "a head for each query": ("llama", {"num_key_value_heads": 2}),
    "heads wider than hidden": ("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    "an odd factor": ("llama", {"hidden_size": 192, "num_attention_heads": 3}),
    "llama3 rope": ("llama", {"rope_scaling": LLAMA3}),
    "yarn rope": ("qwen3", {"rope_scaling": YARN}),
    "bfloat16": ("qwen2", {"dtype": "bfloat16"}),
}


@pytest.mark.parametrize(("family", "overrides"), VARIANTS.values(), ids=VARIANTS)
def test_the_graphs_say_what_transformers_says(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    context = 2 * CHUNK + 5
    checkpoint = make_tiny_model(tmp_path / "checkpoint", family, **overrides)
    make_contract(checkpoint, tmp_path / "htp", context=context)
    pair = float_pair(checkpoint, context=context)
    ids = token_ids(context)
    expected = TorchModel(checkpoint, 2).read(ids)

    # Two chunks, the second with one row of padding, then single tokens up to the end.
    decoder = Decoder(pair, runner_of(tmp_path / "htp").run)
    split = 2 * CHUNK - 1
    logits = [*decoder.prefill(ids[:split]), *(decoder.step("decode", [t]) for t in ids[split:])]

    assert decoder.length == context
    found = np.concatenate(logits)
    assert np.abs(found - expected.logits).max() < 1e-4 * np.ptp(expected.logits)
    cache = decoded_cache(pair, decoder)
    assert cache.keys() == expected.cache.keys()
    for name, value in expected.cache.items():
        assert np.abs(cache[name] - value).max() < 1e-4 * np.ptp(value), name


def test_the_rotation_spreads_a_loud_channel(tiny_models: dict[str, Path]) -> None:
    checkpoint = tiny_models["llama"]
    plain = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"].numpy()
    rotated = dict(htp_tensors(read_spec(read_json(checkpoint / "config.json")), checkpoint))
    embedding = rotated["embed_tokens.weight"]
    assert np.abs(embedding).max() < 0.5 * np.abs(plain).max()
    norms = [np.linalg.norm(each, axis=1) for each in (plain, embedding)]
    np.testing.assert_allclose(*norms, rtol=1e-5)


def test_two_folders_give_the_same_bytes(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    written = []
    for name in ("one", "quite_another_place"):
        make_contract(tiny_models["qwen3"], tmp_path / name)
        names = ("weights.data", "weights.json", "prefill.onnx", "decode.onnx")
        written.append([(tmp_path / name / each).read_bytes() for each in names])
    assert written[0] == written[1]


def test_the_index_says_where_each_tensor_is(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = tiny_models["qwen2"]
    spec = read_spec(read_json(checkpoint / "config.json"))
    write_htp_weights(spec, checkpoint, tmp_path / "w.data", tmp_path / "w.json")
    index = read_json(tmp_path / "w.json")
    content = (tmp_path / "w.data").read_bytes()
    tensors = dict(htp_tensors(spec, checkpoint))
    assert index["data"] == "w.data"
    assert index["tensors"].keys() == tensors.keys()
    for name, value in tensors.items():
        place = index["tensors"][name]
        assert (place["dtype"], place["shape"]) == ("float32", list(value.shape))
        assert place["offset"] % 4096 == 0
        end = place["offset"] + place["length"]
        assert content[place["offset"] : end] == value.tobytes(), name


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_weight_that_fp32_cannot_hold_is_refused(value: float, tmp_path: Path) -> None:
    checkpoint = make_tiny_model(tmp_path / "checkpoint", "llama")
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    tensors["model.layers.1.post_attention_layernorm.weight"][5] = 20.0
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    spec = read_spec(read_json(checkpoint / "config.json"))
    output = tmp_path / "out"
    with pytest.raises(SnapbakeError, match=r"weight layers\.1\.up_proj\.weight is not finite"):
        write_htp_weights(spec, checkpoint, output / "weights.data", output / "weights.json")
    assert not any(output.iterdir())
