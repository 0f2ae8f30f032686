"""config.json to DecoderSpec, against the modules that transformers builds from the same config."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from snapbake.errors import SnapbakeError
from snapbake.families import (
    FAMILIES,
    expected_tensors,
    layer_tensors,
    model_tensors,
    read_spec,
    rope_settings,
)
from snapbake.files import read_json
from tiny_models import make_tiny_model, tiny_config


def config_of(family: str = "qwen3", **overrides: Any) -> dict[str, Any]:
    return tiny_config(family, layers=2, vocab=512, tie=True) | overrides


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_expected_tensors_are_those_of_transformers(
    family: str, bias: bool, tie: bool, tmp_path: Path
) -> None:
    overrides = {} if family == "qwen2" else {"attention_bias": bias}
    if family == "llama":
        overrides["mlp_bias"] = bias
    folder = make_tiny_model(
        tmp_path, family, tie=tie, num_attention_heads=4, num_key_value_heads=2, **overrides
    )
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if tie:
        del shapes["lm_head.weight"]

    spec = read_spec(read_json(folder / "config.json"))

    assert expected_tensors(spec) == shapes
    assert spec.head_dim == 64
    assert (spec.heads, spec.kv_heads) == (4, 2)
    assert spec.tied_embeddings is tie
    assert spec.architecture == type(model).__name__
    assert ("lm_head.weight" in model_tensors(spec)) is not tie
    assert spec.o_bias is (bias and family != "qwen2")
    assert ("q_norm.weight" in layer_tensors(spec, 1)) is (family == "qwen3")
    with safe_open(folder / "model.safetensors", framework="numpy") as tensors:
        assert set(tensors.keys()) == set(expected_tensors(spec))


def test_head_dim_is_not_derived_when_it_is_there() -> None:
    config = config_of(hidden_size=1024, num_attention_heads=16, head_dim=128)
    assert read_spec(config).head_dim == 128


def test_a_head_dim_left_out_is_the_family_default() -> None:
    config = config_of("qwen3")
    del config["head_dim"]
    assert read_spec(config).head_dim == 128
    config = config_of("llama", hidden_size=256)
    del config["head_dim"]
    assert read_spec(config).head_dim == 128


def test_the_real_shape_of_qwen3() -> None:
    spec = read_spec(
        config_of(
            vocab_size=151936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            max_position_embeddings=40960.0,
        )
    )
    count = 0
    for shape in expected_tensors(spec).values():
        size = 1
        for extent in shape:
            size *= extent
        count += size
    assert count == 596_049_920
    assert spec.max_position_embeddings == 40960
    assert isinstance(spec.max_position_embeddings, int)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ],
)
def test_both_ways_to_write_rope_mean_the_same(scaling: dict[str, Any] | None) -> None:
    older = config_of(rope_theta=1000000.0, rope_scaling=scaling)
    newer = config_of(
        rope_parameters={"rope_theta": 1000000.0, **(scaling or {"rope_type": "default"})}
    )
    del newer["rope_theta"], newer["rope_scaling"]

    assert read_spec(newer) == read_spec(older)
    assert rope_settings(newer) == rope_settings(older) == (1000000.0, scaling)
    # Some exporters write both.
    assert read_spec(older | {"rope_parameters": newer["rope_parameters"]}) == read_spec(older)


def test_the_older_name_of_the_rope_type() -> None:
    spec = read_spec(config_of(rope_scaling={"type": "linear", "factor": 2.0}))
    assert (spec.rope.kind, spec.rope.factor) == ("linear", 2.0)


def test_sliding_window_keys_that_are_not_in_use_are_fine() -> None:
    read_spec(config_of("qwen2", use_sliding_window=False, sliding_window=4096))
    read_spec(config_of("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=2))
    read_spec(config_of("qwen2", layer_types=["full_attention"] * 2))


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        ({"model_type": "gemma3_text"}, ["'gemma3_text'", "llama", "qwen2", "qwen3"]),
        ({"model_type": None}, ["no model_type"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'"]),
        ({"num_experts": 8}, ["num_experts", "mixture-of-experts"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        (
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            ["use_sliding_window", "layer 1"],
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "2 layers"]),
        ({"hidden_size": None}, ["no hidden_size"]),
        ({"hidden_size": "128"}, ["hidden_size", "'128'"]),
        ({"hidden_size": 128.5}, ["hidden_size", "128.5"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers"]),
        ({"max_position_embeddings": float("inf")}, ["max_position_embeddings"]),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, ["num_key_value_heads"]),
        ({"head_dim": 63}, ["head_dim 63"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "true or false"]),
        ({"rope_theta": None}, ["rope_theta", "base model"]),
        ({"rope_scaling": "yarn"}, ["rope_scaling", "object"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ["'longrope'", "yarn"]),
        ({"rope_scaling": {"rope_type": "yarn"}}, ["'yarn'", "factor"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["low_freq_factor"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, ["factor", "-1"]),
        (
            {"rope_scaling": {"rope_type": "default", "mrope_section": [1]}, "rope_theta": "x"},
            ["rope_theta"],
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "long": 1}}, ["long"]),
        ({"rope_scaling": {"factor": 2.0}}, ["factor", "without rope_type"]),
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}, ["disagree"]),
        (
            {
                "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            ["rope_scaling and rope_parameters disagree"],
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            ["rope_parameters", "full_attention"],
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_key(
    overrides: dict[str, Any], facts: list[str]
) -> None:
    config = {key: value for key, value in config_of(**overrides).items() if value is not None}

    with pytest.raises(SnapbakeError) as caught:
        read_spec(config)

    assert all(fact in str(caught.value) for fact in ["config.json", *facts])
