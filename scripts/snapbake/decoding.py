"""Running the contract graphs as an application does: prefill in chunks, then token by token.

The KV cache has one column a position. The new rows of a chunk are written behind the valid ones,
the mask hides what is not valid yet. This is Genie's way ("smart mask"), so what passes here passes
there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec
from snapbake.files import read_json
from snapbake.rope import rope_tables

Feeds = dict[str, NDArray]
Run = Callable[[str, Feeds], Mapping[str, NDArray]]  # graph name, inputs -> outputs


@dataclass(frozen=True)
class Border:
    """How one tensor at a graph's border is stored: real = (code - zero_point) * scale.

    `scale` None means that the tensor holds real numbers of `dtype`.
    """

    dtype: np.dtype
    scale: float | None = None
    zero_point: int = 0

    def __str__(self) -> str:
        if self.scale is None:
            return self.dtype.name
        return f"{self.dtype.name} (scale {self.scale:.6g}, zero point {self.zero_point})"

    def encode(self, real: NDArray) -> NDArray:
        """Return real numbers in the stored form; what lies outside the range saturates."""
        if self.scale is None:
            return real.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        codes = np.rint(real / np.float32(self.scale)) + self.zero_point
        return np.clip(codes, limits.min, limits.max).astype(self.dtype)

    @staticmethod
    def of(entry: Mapping[str, Any]) -> "Border":
        """Return the border that an entry of encodings.json describes."""
        return Border(np.dtype(entry["dtype"]), entry.get("scale"), entry.get("zero_point", 0))

    def decode(self, stored: NDArray) -> NDArray[np.float32]:
        """Return the real numbers of stored ones, as float32."""
        if self.scale is None:
            return stored.astype(np.float32)
        return (stored.astype(np.float32) - self.zero_point) * np.float32(self.scale)


def border_names(layers: int) -> list[str]:
    """Return the names of all real-valued tensors at the borders of the contract graphs."""
    cache = [
        f"past_{kind}_{layer}_{way}"
        for layer in range(layers)
        for kind in ("key", "value")
        for way in ("in", "out")
    ]
    return ["attention_mask", "position_ids_cos", "position_ids_sin", *cache, "logits"]


@dataclass(frozen=True)
class GraphPair:
    """What the prefill and the decode graph have in common."""

    spec: DecoderSpec
    prefill_tokens: int
    context: int
    mask_value: float  # added to the scores of positions that must not be seen
    borders: Mapping[str, Border]


def read_pair(spec: DecoderSpec, tokens: int, context: int, encodings: Path) -> GraphPair:
    """Return the pair of a recipe, from its encodings.json."""
    content = read_json(encodings)
    borders = {name: Border.of(entry) for name, entry in content["tensors"].items()}
    return GraphPair(spec, tokens, context, content["mask_value"], borders)


class Decoder:
    """One sequence in progress over a pair of contract graphs.

    `run` executes a graph by its name, "prefill" or "decode", on stored-form tensors. The cache
    stays in stored form, as on the phone: keys [1, KV, D, CL], values [1, KV, CL, D].
    """

    def __init__(self, pair: GraphPair, run: Run) -> None:
        self._pair, self._run = pair, run
        self.length = 0
        spec, context = pair.spec, pair.context
        self.cache: Feeds = {}
        for layer in range(spec.layers):
            for kind, shape in (
                ("key", (1, spec.kv_heads, spec.head_dim, context)),
                ("value", (1, spec.kv_heads, context, spec.head_dim)),
            ):
                name = f"past_{kind}_{layer}"
                border = pair.borders[f"{name}_in"]
                self.cache[name] = np.full(shape, border.zero_point, border.dtype)

    def feeds(self, graph: str, ids: list[int]) -> Feeds:
        """Return the inputs, in stored form, of the step that takes `ids` next."""
        pair, start = self._pair, self.length
        tokens = pair.prefill_tokens if graph == "prefill" else 1
        past = pair.context - tokens
        if not 0 < len(ids) <= tokens or start > past:
            raise SnapbakeError(
                f"the {graph} graph takes 1 to {tokens} tokens after at most {past}, found "
                f"{len(ids)} after {start}; use a larger context"
            )
        padded = np.zeros((1, tokens), np.int32)
        padded[0, : len(ids)] = ids
        mask = np.full((1, 1, tokens, pair.context), pair.mask_value, np.float32)
        mask[..., :start] = 0
        mask[..., past:][..., np.tri(tokens, dtype=bool)] = 0
        cos, sin = rope_tables(pair.spec.rope, pair.spec.head_dim, start + np.arange(tokens))
        real = {
            "attention_mask": mask,
            "position_ids_cos": cos[None, None],
            "position_ids_sin": sin[None, None],
        }
        feeds: Feeds = {"input_ids": padded}
        feeds.update({name: pair.borders[name].encode(value) for name, value in real.items()})
        for name, cached in self.cache.items():
            view = cached[..., :past] if "key" in name else cached[:, :, :past]
            feeds[f"{name}_in"] = np.ascontiguousarray(view)
        return feeds

    def accept(self, outputs: Mapping[str, NDArray], count: int) -> NDArray[np.float32]:
        """Append the first `count` new rows to the cache; return their logits [count, V]."""
        start, end = self.length, self.length + count
        for name, cached in self.cache.items():
            new = outputs[f"{name}_out"]
            if "key" in name:
                cached[..., start:end] = new[..., :count]
            else:
                cached[:, :, start:end] = new[:, :, :count]
        self.length = end
        return self._pair.borders["logits"].decode(outputs["logits"][0, :count])

    def step(self, graph: str, ids: list[int]) -> NDArray[np.float32]:
        """Run one step over `ids` and return their logits [len(ids), V]."""
        return self.accept(self._run(graph, self.feeds(graph, ids)), len(ids))

    def prefill(self, ids: list[int]) -> Iterator[NDArray[np.float32]]:
        """Run the prefill graph over `ids` chunk by chunk, yielding each chunk's logits.

        Where less than a whole chunk is left of the context, the decode graph takes over, as no
        prefill step can start there.
        """
        position = 0
        while position < len(ids):
            fits = self.length <= self._pair.context - self._pair.prefill_tokens
            graph, size = ("prefill", self._pair.prefill_tokens) if fits else ("decode", 1)
            yield self.step(graph, ids[position : position + size])
            position += size

    def generate(self, prompt: list[int], count: int, stop: Collection[int]) -> list[int]:
        """Return up to `count` greedily chosen tokens after `prompt`; a stop token ends them."""
        *_, logits = self.prefill(prompt)
        chosen: list[int] = []
        while len(chosen) < count and self.length < self._pair.context:
            token = int(logits[-1].argmax())
            chosen.append(token)
            if token in stop or len(chosen) == count:
                break
            logits = self.step("decode", [token])
        return chosen
