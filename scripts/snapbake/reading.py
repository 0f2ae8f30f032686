"""Reading a text with the contract graphs, and the cache that comes of it."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from snapbake.decoding import Decoder, GraphPair, Run
from snapbake.errors import SnapbakeError
from snapbake.subset import DECODE_STEPS

Array = NDArray[np.float32]


def read_text(pair: GraphPair, run: Run, ids: Sequence[int]) -> tuple[Array, Decoder]:
    """Read a text as an application would; return its logits [n, V] and the decoder after it.

    The last `DECODE_STEPS` tokens go through the decode graph. Raises SnapbakeError at the first
    step whose logits are not finite.
    """
    decoder = Decoder(pair, run)
    body, tail = list(ids[:-DECODE_STEPS]), list(ids[-DECODE_STEPS:])
    logits: list[Array] = []
    for rows in chain(decoder.prefill(body), (decoder.step("decode", [token]) for token in tail)):
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            position = sum(map(len, logits)) + int(finite.argmin())
            raise SnapbakeError(
                f"the logits at position {position} of a text are not finite: something in the "
                "graph is beyond what its number format holds; use a quantised recipe such as w8a16"
            )
        logits.append(rows)
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
