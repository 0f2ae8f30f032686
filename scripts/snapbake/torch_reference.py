"""What the model itself says: transformers in fp32 on the CPU, the measure for every graph."""

from collections.abc import Collection, Iterator, Mapping, Sequence
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


class TorchModel:
    """A checkpoint in transformers, fp32 whatever its dtype, with eager attention."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        """Load the model.

        Raises when transformers makes up, drops or resizes a tensor, which for it is a warning.
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
        self._model, report = loaded
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[kind]:
                raise SnapbakeError(
                    f"transformers reports {kind.replace('_', ' ')} in {checkpoint}: "
                    f"{', '.join(map(str, sorted(report[kind])[:3]))}; build the checkpoint again"
                )
        self._model.eval()
        self._torch: Any = torch
        self._checkpoint = checkpoint

    def read(self, ids: Sequence[int]) -> Reference:
        """Read a text in one go; raises when a result is not finite."""
        with self._torch.inference_mode():
            result = self._model(input_ids=self._torch.tensor([list(ids)]), use_cache=True)
        logits = result.logits[0].numpy()
        cache = {}
        for layer, pair in enumerate(result.past_key_values.layers):
            cache[f"past_key_{layer}"] = pair.keys[0].numpy()
            cache[f"past_value_{layer}"] = pair.values[0].numpy()
        if not all(np.isfinite(value).all() for value in (logits, *cache.values())):
            raise SnapbakeError(
                f"the model in {self._checkpoint} gives numbers that are not finite in fp32; "
                "export it again from a sound training state"
            )
        return Reference(logits, cache)

    def generate(
        self, prompt: Sequence[int], count: int, stop: Collection[int]
    ) -> tuple[list[int], list[float]]:
        """Return up to `count` greedily chosen tokens after `prompt` and the margin of each.

        A stop token ends them. The margin is by how many nats a token's log-probability exceeds
        that of the next best: near 0, another choice is as good.
        """
        chosen: list[int] = []
        margins: list[float] = []
        past, unread = None, list(prompt)
        with self._torch.inference_mode():
            while len(chosen) < count and (not chosen or chosen[-1] not in stop):
                result = self._model(
                    input_ids=self._torch.tensor([unread]), past_key_values=past, use_cache=True
                )
                past = result.past_key_values
                best = result.logits[0, -1].topk(2)
                unread = [int(best.indices[0])]
                chosen += unread
                margins.append(float(best.values[0] - best.values[1]))
        return chosen, margins


def torch_references(
    checkpoint: Path, prompts: Sequence[Sequence[int]], threads: int
) -> Iterator[Reference]:
    """Yield the reference of each prompt; the model is freed when the iterator ends."""
    model = TorchModel(checkpoint, threads)
    for ids in prompts:
        yield model.read(ids)
