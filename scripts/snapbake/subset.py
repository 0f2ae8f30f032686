"""The part of the held-out text that the slow emulator computes, with what others made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from snapbake.files import atomic_path
from snapbake.token_records import TokenRecord

# How many tokens at the end of a reading go through the decode graph.
DECODE_STEPS = 4
# How many prefill chunks a reading fills at most.
CHUNKS = 2

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Reading:
    """A held-out text of n tokens: read in prefill chunks, then `DECODE_STEPS` single tokens.

    `reference` are PyTorch's fp32 logits [n, V], `cpu` those of the recipe's graphs in onnxruntime
    on the CPU. `cache` is PyTorch's KV cache, [layers, 2 (key, value), KV, n, D].
    """

    record: int
    ids: tuple[int, ...]
    reference: Array
    cpu: Array
    cache: Array


@dataclass(frozen=True)
class Answer:
    """A held-out prompt and the tokens that follow it greedily, by PyTorch and on the CPU."""

    record: int
    prompt: tuple[int, ...]
    count: int
    stop: tuple[int, ...]
    reference: tuple[int, ...]
    cpu: tuple[int, ...]


@dataclass(frozen=True)
class Subset:
    """What the emulator has to compute: texts to read and a prompt to answer."""

    readings: tuple[Reading, ...]
    answer: Answer


def choose_readings(
    records: Sequence[TokenRecord], count: int, tokens: int, context: int
) -> list[tuple[TokenRecord, tuple[int, ...]]]:
    """Return the records that fill the emulator's prefill chunks best, cut to size.

    A partly filled chunk costs the emulator as much as a full one, so the longest records win.
    """
    longest = min(context, CHUNKS * tokens + DECODE_STEPS)
    ordered = sorted(records, key=lambda record: -min(len(record.ids), longest))
    return [(record, record.ids[:longest]) for record in ordered[:count]]


def choose_prompt(records: Sequence[TokenRecord], taken: Sequence[int], tokens: int) -> TokenRecord:
    """Return the record to answer: its prompt fits one chunk, and no reading has it if possible."""
    fitting = [record for record in records if record.prompt_length <= tokens] or list(records)
    fresh = [record for record in fitting if record.index not in taken] or fitting
    return fresh[0]


def save_subset(path: Path, subset: Subset) -> None:
    """Write a subset as .npz."""
    arrays: dict[str, NDArray] = {}
    for number, reading in enumerate(subset.readings):
        arrays[f"reading_{number}_record"] = np.array(reading.record)
        arrays[f"reading_{number}_ids"] = np.array(reading.ids, np.int64)
        for name in ("reference", "cpu", "cache"):
            arrays[f"reading_{number}_{name}"] = getattr(reading, name)
    for name in ("record", "prompt", "count", "stop", "reference", "cpu"):
        arrays[f"answer_{name}"] = np.array(getattr(subset.answer, name), np.int64)
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **cast(Any, arrays))


def load_subset(path: Path) -> Subset:
    """Read what `save_subset` wrote."""
    with np.load(path) as arrays:

        def ints(name: str) -> tuple[int, ...]:
            return tuple(int(value) for value in arrays[name])

        count = sum(name.endswith("_ids") for name in arrays.files)
        readings = tuple(
            Reading(
                int(arrays[f"reading_{number}_record"]),
                ints(f"reading_{number}_ids"),
                *(arrays[f"reading_{number}_{name}"] for name in ("reference", "cpu", "cache")),
            )
            for number in range(count)
        )
        answer = Answer(
            int(arrays["answer_record"]),
            ints("answer_prompt"),
            int(arrays["answer_count"]),
            *(ints(f"answer_{name}") for name in ("stop", "reference", "cpu")),
        )
    return Subset(readings, answer)
