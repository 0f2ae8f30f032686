"""The tables against transformers' own rotary embedding."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.rope import rope_tables
from tiny_models import tiny_config

POSITIONS = np.array([0, 1, 2, 17, 127, 511, 1023, 2047])

SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn, original length from the config": {"rope_type": "yarn", "factor": 2.0},
    "yarn, attention factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
    "yarn, mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    "yarn, betas": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    "older key": {"type": "linear", "factor": 3.0},
}


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_tables_equal_transformers(name: str, theta: float, head_dim: int) -> None:
    config = tiny_config("qwen3", layers=1, vocab=512, tie=True)
    config |= {"rope_theta": theta, "head_dim": head_dim, "rope_scaling": SCALINGS[name]}

    cos, sin = rope_tables(read_spec(config).rope, head_dim, POSITIONS)

    expected_cos, expected_sin = _reference(Qwen3Config, Qwen3RotaryEmbedding, config)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (len(POSITIONS), head_dim // 2)
    # One unit in the last place of a frequency is 2047 * 6e-8 radians at the last position.
    np.testing.assert_allclose(cos, expected_cos, atol=5e-4)
    np.testing.assert_allclose(sin, expected_sin, atol=5e-4)
    np.testing.assert_allclose(cos[:4], expected_cos[:4], atol=5e-6)
    np.testing.assert_allclose(sin[:4], expected_sin[:4], atol=5e-6)


def test_each_scaling_changes_the_tables() -> None:
    config = tiny_config("llama", layers=1, vocab=512, tie=True)
    seen = []
    for scaling in SCALINGS.values():
        spec = read_spec(config | {"rope_scaling": scaling})
        seen.append(rope_tables(spec.rope, 64, POSITIONS)[0].tobytes())

    # Dynamic scaling is the plain one up to max_position_embeddings; all others differ.
    assert len(set(seen)) == len(seen) - 1


def test_the_llama_embedding_is_the_same() -> None:
    config = tiny_config("llama", layers=1, vocab=512, tie=True)
    config["rope_scaling"] = SCALINGS["llama3"]

    cos, sin = rope_tables(read_spec(config).rope, 64, POSITIONS)

    expected_cos, expected_sin = _reference(LlamaConfig, LlamaRotaryEmbedding, config)
    np.testing.assert_allclose(cos, expected_cos, atol=5e-4)
    np.testing.assert_allclose(sin, expected_sin, atol=5e-4)


def test_dynamic_scaling_ends_where_the_tables_would_change() -> None:
    config = tiny_config("llama", layers=1, vocab=512, tie=True)
    config["rope_scaling"] = SCALINGS["dynamic"]

    with pytest.raises(SnapbakeError, match="at most 2048 tokens"):
        rope_tables(read_spec(config).rope, 64, np.arange(2049))


def _reference(
    config_class: Any, embedding_class: Any, config: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    embedding = embedding_class(config_class(**config))
    cos, sin = embedding(torch.zeros(1), torch.from_numpy(POSITIONS)[None])
    half = config["head_dim"] // 2
    return cos[0, :, :half].numpy(), sin[0, :, :half].numpy()
