"""What the model itself says: transformers in fp32 on the CPU, the measure for every graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapbake.errors import SnapbakeError


@dataclass(frozen=True)
class Reference:
    """What PyTorch makes of n tokens, all float32.

    `logits` is [n, vocabulary]. `cache` maps `past_key_{layer}` (after the rotary embedding) and
    `past_value_{layer}` to [kv_heads, n, head_dim].
    """

    logits: NDArray[np.float32]
    cache: Mapping[str, NDArray[np.float32]]


def torch_references(
    checkpoint: Path, prompts: Sequence[Sequence[int]], threads: int
) -> Iterator[Reference]:
    """Yield the reference of each prompt, read in one go with eager attention.

    The model is loaded once, in fp32 whatever the checkpoint's dtype, and freed when the iterator
    ends. Raises when transformers makes up, drops or resizes a tensor (for it that is a warning),
    and when a result is not finite.
    """
    # Imported here: this takes seconds, and what is returned is numpy.
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise SnapbakeError(
                f"transformers reports {kind.replace('_', ' ')} in {checkpoint}: "
                f"{', '.join(map(str, sorted(report[kind])[:3]))}; build the checkpoint again"
            )
    model.eval()
    for ids in prompts:
        with torch.inference_mode():
            result = model(input_ids=torch.tensor([list(ids)]), use_cache=True)
        logits = result.logits[0].numpy()
        cache = {}
        for layer, pair in enumerate(result.past_key_values.layers):
            cache[f"past_key_{layer}"] = pair.keys[0].numpy()
            cache[f"past_value_{layer}"] = pair.values[0].numpy()
        if not all(np.isfinite(value).all() for value in (logits, *cache.values())):
            raise SnapbakeError(
                f"the model in {checkpoint} gives numbers that are not finite in fp32; export it "
                "again from a sound training state"
            )
        yield Reference(logits, cache)
