"""The identity of a model: one SHA-256 over everything that shapes its logits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from snapbake.families import DecoderSpec, RopeKind, RopeSpec

# The parameters that each kind reads, besides the base; see `snapbake.rope`.
_ROPE_PARAMETERS: Mapping[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "high_freq_factor",
        "low_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "beta_fast",
        "beta_slow",
        "factor",
        "original_max_position_embeddings",
        "truncate",
    ),
}
_ROPE_DEFAULTS: Mapping[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}


def model_identity(spec: DecoderSpec, weights: str) -> str:
    """Return SHA-256, in hexadecimal, of a model with that identity of its weights.

    `weights` is what `safetensors_file.scan_tensors` returns: names, types, shapes and bytes of
    all tensors. Of `spec` goes in what the logits are computed from, in one form: numbers as they
    were parsed, defaults written out, rotary parameters only where their kind reads them. Two
    things of it are left out: `architecture`, which the family says, and
    `max_position_embeddings`, a limit, which enters where the rotary positions are scaled by it,
    as `original_max_position_embeddings`. So the identity does not depend on how the model is laid
    out in files, nor on the version of transformers that saved it. The tokenizer and the chat
    template are not in it.
    """
    content = asdict(spec)
    del content["architecture"], content["max_position_embeddings"]
    content["rope"] = _rope_content(spec.rope)
    canonical = json.dumps({"spec": content, "weights": weights}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _rope_content(rope: RopeSpec) -> dict[str, Any]:
    values = asdict(rope)
    content: dict[str, Any] = {"kind": rope.kind, "theta": rope.theta}
    for name in _ROPE_PARAMETERS[rope.kind]:
        content[name] = _ROPE_DEFAULTS.get(name) if values[name] is None else values[name]
    if rope.kind == "yarn":
        # What the gain is computed from. The gain itself is a logarithm, whose last bit may differ
        # between machines.
        if rope.attention_factor is not None:
            content["attention_factor"] = rope.attention_factor
        elif rope.mscale is not None and rope.mscale_all_dim is not None:
            content |= {"mscale": rope.mscale, "mscale_all_dim": rope.mscale_all_dim}
    return content
