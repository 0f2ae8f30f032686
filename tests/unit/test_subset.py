"""What the emulator is given to compute, and that it survives the way through a file."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_graphs import token_record
from snapbake.subset import (
    DECODE_STEPS,
    Answer,
    Reading,
    Subset,
    choose_prompts,
    choose_readings,
    load_subset,
    save_subset,
)
from snapbake.token_records import TokenRecord


def make_subset(readings: int = 2, answers: int = 3) -> Subset:
    random = np.random.default_rng(0)
    return Subset(
        tuple(
            Reading(
                40 + number,
                tuple(random.integers(0, 50, n).tolist()),
                random.standard_normal((n, 50)).astype(np.float32),
                random.standard_normal((2, 2, 1, n, 8)).astype(np.float32),
            )
            for number, n in enumerate([7, 12, 3][:readings])
        ),
        tuple(
            Answer(number, (1, 2, 3), 16, (9, 8, 2)[:number], (0.5, 1e-9, 7.0)[:number])
            for number in range(answers)
        ),
        (2, 7),
    )


@pytest.mark.parametrize(("readings", "answers"), [(2, 3), (1, 1), (0, 1), (3, 2)])
def test_a_subset_survives_its_file(tmp_path: Path, readings: int, answers: int) -> None:
    subset = make_subset(readings, answers)
    save_subset(tmp_path / "reference.npz", subset)
    found = load_subset(tmp_path / "reference.npz")
    assert (found.answers, found.stop) == (subset.answers, subset.stop)
    assert all(type(token) is int for answer in found.answers for token in answer.tokens)
    assert len(found.readings) == readings
    for left, right in zip(found.readings, subset.readings, strict=True):
        assert (left.record, left.ids) == (right.record, right.ids)
        np.testing.assert_array_equal(left.logits, right.logits, strict=True)
        np.testing.assert_array_equal(left.cache, right.cache, strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["reference.npz"]


def test_equal_subsets_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("one.npz", "two.npz"):
        save_subset(tmp_path / name, make_subset())
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_the_margin_is_that_of_the_first_difference() -> None:
    answer = Answer(0, (1,), 4, (5, 6, 7, 8), (0.1, 0.2, 0.3, 0.4))
    assert answer.margin_at_difference([5, 6, 9, 8]) == 0.3
    assert answer.margin_at_difference([9]) == 0.1
    assert answer.margin_at_difference([5, 6, 7, 8]) is None
    assert answer.margin_at_difference([5, 6]) is None
    assert answer.margin_at_difference([5, 6, 7, 8, 9]) is None
    assert answer.margin_at_difference([]) is None


def test_the_longest_records_are_read_first_and_cut_to_two_chunks() -> None:
    lengths = [20, 36, 300, 290, 9]
    records = [token_record(index, length) for index, length in enumerate(lengths)]
    chosen = choose_readings(records, 3, 16, 512)
    assert [(record.index, len(ids)) for record, ids in chosen] == [(1, 36), (2, 36), (3, 36)]
    for record, ids in chosen:
        assert ids == record.ids[:36]


@given(
    st.lists(st.integers(2, 64), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(2, 32),
    st.integers(1, 64),
)
def test_a_reading_takes_whole_chunks_and_few_steps(
    lengths: list[int], count: int, tokens: int, more: int
) -> None:
    context = tokens + more
    records = [token_record(i, min(length, context)) for i, length in enumerate(lengths)]
    chosen = choose_readings(records, count, tokens, context)
    assert len(chosen) == min(count, len(records))
    for record, ids in chosen:
        assert 0 < len(ids) <= len(record.ids)
        body = max(0, len(ids) - DECODE_STEPS)
        prefills = math.ceil(body / tokens)
        assert prefills <= 2
        # No token of the body is left for the decode graph, which is slow.
        assert prefills * tokens <= context or body == 0


def records_with_prompts(*lengths: int) -> list[TokenRecord]:
    return [token_record(i, length + 5, length) for i, length in enumerate(lengths)]


def test_prompts_that_fit_a_chunk_and_are_not_read_come_first() -> None:
    records = records_with_prompts(10, 40, 16, 17, 3)

    def chosen(count: int, taken: list[int]) -> list[int]:
        return [record.index for record in choose_prompts(records, count, taken, 16)]

    assert chosen(5, []) == [0, 2, 4, 3, 1]
    assert chosen(5, [0, 4]) == [2, 0, 4, 3, 1]
    assert chosen(2, [0, 2, 4]) == [0, 2]
    assert chosen(9, [3]) == [0, 2, 4, 3, 1]


def test_the_shortest_prompt_is_answered_when_none_fits() -> None:
    records = records_with_prompts(50, 20, 30)
    assert [record.index for record in choose_prompts(records, 1, [1], 16)] == [1]
