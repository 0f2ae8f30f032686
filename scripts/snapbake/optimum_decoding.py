"""Running Optimum's graphs step by step with a KV cache: the dynamic export and the frozen ones.

The counterpart of `snapbake.decoding.Decoder` for graphs with the borders of
`snapbake.optimum_graph`.
"""

import numpy as np
from numpy.typing import NDArray

from snapbake.decoding import Feeds, Run
from snapbake.families import DecoderSpec


class OptimumDecoder:
    """One sequence in progress.

    `run` executes "prefill" or "decode". With `dynamic`, graphs get exactly the new tokens and the
    valid past. Otherwise they get their fixed shapes: the past is filled up with zeros and masked,
    the new tokens stand in the last columns of the mask, and rows after them are padding.
    The cache is float32, `past_key_{layer}` and `past_value_{layer}` as [kv_heads, context,
    head_dim].
    """

    def __init__(
        self, spec: DecoderSpec, prefill_tokens: int, context: int, dynamic: bool, run: Run
    ) -> None:
        self._prefill_tokens, self._context, self._dynamic = prefill_tokens, context, dynamic
        self._run = run
        self._layers = spec.layers
        self.length = 0
        shape = (spec.kv_heads, context, spec.head_dim)
        self.cache = {
            f"past_{kind}_{layer}": np.zeros(shape, np.float32)
            for layer in range(spec.layers)
            for kind in ("key", "value")
        }

    def step(self, graph: str, ids: list[int]) -> NDArray[np.float32]:
        """Run one step over `ids` and return their logits [len(ids), vocabulary]."""
        start, count = self.length, len(ids)
        if self._dynamic:
            tokens, past = count, start
        else:
            tokens = self._prefill_tokens if graph == "prefill" else 1
            past = self._context - tokens
        padded = np.zeros((1, tokens), np.int64)
        padded[0, :count] = ids
        mask = np.zeros((1, past + tokens), np.int64)
        mask[0, :start] = 1
        mask[0, past : past + count] = 1
        feeds: Feeds = {
            "input_ids": padded,
            "attention_mask": mask,
            "position_ids": start + np.arange(tokens, dtype=np.int64)[None],
        }
        for layer in range(self._layers):
            for kind in ("key", "value"):
                cached = self.cache[f"past_{kind}_{layer}"]
                feeds[f"past_key_values.{layer}.{kind}"] = cached[None, :, :past]
        outputs = self._run(graph, feeds)
        for layer in range(self._layers):
            for kind in ("key", "value"):
                new = outputs[f"present.{layer}.{kind}"][0, :, past : past + count]
                self.cache[f"past_{kind}_{layer}"][:, start : start + count] = new
        self.length += count
        return outputs["logits"][0, :count]
