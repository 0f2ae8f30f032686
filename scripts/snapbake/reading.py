"""Reading a text with the contract graphs, and the cache that comes of it."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from snapbake.decoding import Decoder, GraphPair, Run
from snapbake.subset import DECODE_STEPS

Array = NDArray[np.float32]


def read_text(pair: GraphPair, run: Run, ids: Sequence[int]) -> tuple[Array, Decoder]:
    """Read a text as an application would; return its logits [n, V] and the decoder after it.

    The last `DECODE_STEPS` tokens go through the decode graph.
    """
    decoder = Decoder(pair, run)
    body, tail = list(ids[:-DECODE_STEPS]), list(ids[-DECODE_STEPS:])
    logits = [*decoder.prefill(body), *(decoder.step("decode", [token]) for token in tail)]
    return np.concatenate(logits), decoder


def decoded_cache(pair: GraphPair, decoder: Decoder) -> dict[str, Array]:
    """Return the real numbers of the valid part of a cache, each [KV, n, D] as in PyTorch."""
    cache = {}
    for name, stored in decoder.cache.items():
        real = pair.borders[f"{name}_in"].decode(stored[0])
        rows = np.swapaxes(real, 1, 2) if "key" in name else real
        cache[name] = rows[:, : decoder.length]
    return cache


def stacked_cache(cache: Mapping[str, Array]) -> Array:
    """Return a cache as one array [layers, 2 (key, value), KV, n, D]."""
    layers = len(cache) // 2
    return np.stack(
        [
            np.stack([cache[f"past_{kind}_{layer}"] for kind in ("key", "value")])
            for layer in range(layers)
        ]
    )
