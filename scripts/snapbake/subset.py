"""The part of the held-out text that the slow emulator computes, and what PyTorch makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from snapbake.files import atomic_path
from snapbake.metrics import agreeing
from snapbake.token_records import TokenRecord

# How many tokens at the end of a reading go through the decode graph.
DECODE_STEPS = 4
# How many prefill chunks a reading fills at most.
CHUNKS = 2

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Reading:
    """A held-out text of n tokens: read in prefill chunks, then `DECODE_STEPS` single tokens.

    `logits` [n, V] and `cache` [layers, 2 (key, value), KV, n, D] are PyTorch's in fp32.
    """

    record: int
    ids: tuple[int, ...]
    logits: Array
    cache: Array


@dataclass(frozen=True)
class Answer:
    """A held-out prompt and the up to `count` tokens that PyTorch in fp32 answers greedily.

    `margins` says by how many nats PyTorch prefers each token to its next best.
    """

    record: int
    prompt: tuple[int, ...]
    count: int
    tokens: tuple[int, ...]
    margins: tuple[float, ...]

    def margin_at_difference(self, tokens: Sequence[int]) -> float | None:
        """Return PyTorch's margin where other tokens first differ, None when they all agree."""
        position = agreeing(self.tokens, tokens)
        return self.margins[position] if position < min(len(self.tokens), len(tokens)) else None


@dataclass(frozen=True)
class Subset:
    """Texts to read and prompts to answer; the emulator answers the first prompt only.

    `stop` are the tokens that end an answer.
    """

    readings: tuple[Reading, ...]
    answers: tuple[Answer, ...]
    stop: tuple[int, ...]


def choose_readings(
    records: Sequence[TokenRecord], count: int, tokens: int, context: int
) -> list[tuple[TokenRecord, tuple[int, ...]]]:
    """Return the records that fill the emulator's prefill chunks best, cut to size.

    A partly filled chunk costs the emulator as much as a full one, so the longest records win.
    What a chunk does not take is read token by token, so there are no more than whole chunks.
    """
    chunks = min(CHUNKS, context // tokens)
    longest = min(context, chunks * tokens + DECODE_STEPS)
    ordered = sorted(records, key=lambda record: -min(len(record.ids), longest))
    return [(record, record.ids[:longest]) for record in ordered[:count]]


def choose_prompts(
    records: Sequence[TokenRecord], count: int, taken: Sequence[int], tokens: int
) -> list[TokenRecord]:
    """Return the records to answer: first those whose prompt fits one chunk and is in no reading.

    Prompts that do not fit come last, the shortest first. The order of the records decides among
    equals.
    """
    return sorted(
        records, key=lambda record: (max(record.prompt_length, tokens), record.index in taken)
    )[:count]


def save_subset(path: Path, subset: Subset) -> None:
    """Write a subset as .npz."""
    arrays: dict[str, NDArray] = {"stop": np.array(subset.stop, np.int64)}
    for number, reading in enumerate(subset.readings):
        for name in ("record", "ids", "logits", "cache"):
            arrays[f"reading_{number}_{name}"] = np.array(getattr(reading, name))
    for number, answer in enumerate(subset.answers):
        for name in ("record", "prompt", "count", "tokens"):
            arrays[f"answer_{number}_{name}"] = np.array(getattr(answer, name), np.int64)
        arrays[f"answer_{number}_margins"] = np.array(answer.margins, np.float64)
    save_arrays(path, arrays)


def save_arrays(path: Path, arrays: dict[str, NDArray]) -> None:
    """Write named arrays as .npz, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **cast(Any, arrays))


def load_subset(path: Path) -> Subset:
    """Read what `save_subset` wrote."""
    with np.load(path) as arrays:

        def ints(name: str) -> tuple[int, ...]:
            return tuple(int(value) for value in arrays[name])

        def count(ending: str) -> range:
            return range(sum(name.endswith(ending) for name in arrays.files))

        readings = tuple(
            Reading(
                int(arrays[f"reading_{number}_record"]),
                ints(f"reading_{number}_ids"),
                arrays[f"reading_{number}_logits"],
                arrays[f"reading_{number}_cache"],
            )
            for number in count("_ids")
        )
        answers = tuple(
            Answer(
                int(arrays[f"answer_{number}_record"]),
                ints(f"answer_{number}_prompt"),
                int(arrays[f"answer_{number}_count"]),
                ints(f"answer_{number}_tokens"),
                tuple(float(value) for value in arrays[f"answer_{number}_margins"]),
            )
            for number in count("_prompt")
        )
        return Subset(readings, answers, ints("stop"))
