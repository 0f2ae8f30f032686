"""Rotary positions in Genie's words, and which of them it computes as the model does."""

from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, RopeSpec


def positional_encoding(spec: DecoderSpec, context: int) -> dict[str, Any]:
    """Return "positional-encoding" of a genie_config.json for a context of so many tokens.

    Raises SnapbakeError for positions that Genie does not compute as the model was trained.
    """
    rope = spec.rope
    positions: dict[str, Any] = {
        "type": "rope",
        "rope-dim": spec.head_dim // 2,
        "rope-theta": int(rope.theta) if rope.theta.is_integer() else rope.theta,
    }
    scaling = _scaling(rope, context)
    return {**positions, "rope-scaling": scaling} if scaling else positions


def _scaling(rope: RopeSpec, context: int) -> dict[str, Any] | None:
    """Return Genie's rope-scaling, None where the positions are plain ones."""
    original = rope.original_max_position_embeddings
    if rope.kind == "default" or (rope.kind == "dynamic" and original and context <= original):
        return None
    if rope.kind == "linear":
        return {"rope-type": "linear", "factor": rope.factor}
    if rope.kind == "llama3":
        return {
            "rope-type": "llama3",
            "factor": rope.factor,
            "low-freq-factor": rope.low_freq_factor,
            "high-freq-factor": rope.high_freq_factor,
            "original-max-position-embeddings": original,
        }
    raise SnapbakeError(
        f"the model's rope scaling is {rope.kind!r}, whose tables Genie computes otherwise "
        "than the model was trained with, so it cannot run it; build a model with plain, linear or "
        "llama3 positions, or take context.bin, which is made all the same, to another runtime"
    )
