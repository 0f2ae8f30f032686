"""Cosine and sine tables of rotary position embeddings.

Plain rotary positions: Su et al. 2021, arXiv 2104.09864, frequency_i = theta^(-2i/head_dim).
Scaled kinds, each as `modeling_rope_utils.py` of transformers 4.57 defines it:

* linear: frequencies divided by `factor` (position interpolation, arXiv 2306.15595).
* dynamic: like plain up to `max_position_embeddings`; beyond it the base grows with the length.
* llama3: wavelengths above original/low_freq_factor are divided by `factor`, those below
  original/high_freq_factor are kept, between the two the frequency is interpolated (Llama 3.1).
* yarn: the ramp of arXiv 2309.00071 between the dimensions that turn `beta_fast` and `beta_slow`
  times within the original length; cos and sin are multiplied by the attention factor.
"""

import math

import numpy as np
from numpy.typing import NDArray

from snapbake.errors import SnapbakeError
from snapbake.families import RopeSpec


def rope_tables(
    rope: RopeSpec, head_dim: int, positions: NDArray[np.integer]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cos and sin, float32 [len(positions), head_dim / 2], for positions in tokens.

    Column i belongs to the pair (i, i + head_dim / 2) of a head. Raises SnapbakeError for dynamic
    scaling at a position where the tables of earlier tokens would change with the length.
    """
    limit = rope.original_max_position_embeddings
    if rope.kind == "dynamic" and limit is not None and positions.max(initial=0) >= limit:
        raise SnapbakeError(
            f"dynamic rope scaling changes all positions beyond {limit} tokens, which fixed tables "
            f"cannot follow; choose a context of at most {limit} tokens"
        )
    frequencies, gain = rope_frequencies(rope, head_dim)
    # In float32, as the reference multiplies: at position 30000 the rounding of the angle is
    # visible, and the model was trained and is verified with that rounding.
    angles = np.multiply.outer(
        positions.astype(np.float32), frequencies.astype(np.float32), dtype=np.float32
    )
    scale = np.float32(gain)
    return np.cos(angles) * scale, np.sin(angles) * scale


def rope_frequencies(rope: RopeSpec, head_dim: int) -> tuple[NDArray[np.float64], float]:
    """Return radians a token, float64 [head_dim / 2], and the gain of cos and sin."""
    plain = rope.theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim), _yarn_gain(rope)
    return plain, 1.0


def _llama3(rope: RopeSpec, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    original, low, high = _given(
        rope.original_max_position_embeddings, rope.low_freq_factor, rope.high_freq_factor
    )
    turns = original * plain / (2 * math.pi)  # within the original length
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def _yarn(rope: RopeSpec, plain: NDArray[np.float64], head_dim: int) -> NDArray[np.float64]:
    (original,) = _given(rope.original_max_position_embeddings)

    def dimension(turns: float) -> float:
        """Return the dimension whose pair turns that often within the original length."""
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = dimension(rope.beta_fast or 32.0), dimension(rope.beta_slow or 1.0)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first if last != first else 0.001
    interpolated = np.clip((np.arange(head_dim // 2) - first) / width, 0.0, 1.0)
    return plain / rope.factor * interpolated + plain * (1 - interpolated)


def _yarn_gain(rope: RopeSpec) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def gain(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return gain(rope.mscale) / gain(rope.mscale_all_dim)
    return gain(1.0)


def _given(*values: float | None) -> tuple[float, ...]:
    """Return parameters that `families.read_spec` guarantees for the kind."""
    if any(value is None for value in values):
        raise ValueError("the rope specification lacks a parameter of its kind")
    return tuple(value for value in values if value is not None)
