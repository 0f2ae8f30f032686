"""The figures against their definitions, written out plainly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapbake.metrics import CosineSums, agreeing, score_tokens, summarize


def logits_of(count: int, seed: int, scale: float = 3.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal((count, 11))).astype(np.float32)


def probabilities(row: np.ndarray) -> list[float]:
    powers = [math.exp(float(value) - float(row.max())) for value in row]
    return [power / sum(powers) for power in powers]


# Around the 64 rows that are computed at a time.
@pytest.mark.parametrize("count", [2, 3, 63, 64, 65, 130])
def test_scores_are_those_of_the_formulas(count: int) -> None:
    reference, found = logits_of(count, 0), logits_of(count, 1)
    ids = np.random.default_rng(2).integers(0, 11, count).tolist()
    scores = score_tokens(reference, found, ids)
    for position in range(count):
        p, q = probabilities(reference[position]), probabilities(found[position])
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert scores.kl[position] == pytest.approx(kl, rel=1e-9)
        assert scores.agree[position] == (p.index(max(p)) == q.index(max(q)))
        left, right = (list(map(float, each[position])) for each in (reference, found))
        dot = sum(a * b for a, b in zip(left, right, strict=True))
        cosine = dot / (math.hypot(*left) * math.hypot(*right))
        assert scores.cosine[position] == pytest.approx(cosine, rel=1e-9)
        if position < count - 1:
            token = ids[position + 1]
            assert scores.reference_loss[position] == pytest.approx(-math.log(p[token]))
            assert scores.loss[position] == pytest.approx(-math.log(q[token]))
    assert len(scores.loss) == len(scores.reference_loss) == count - 1


def test_the_same_logits_are_no_loss() -> None:
    logits = logits_of(70, 3)
    scores = score_tokens(logits, logits, [token % 11 for token in range(70)])
    figures = summarize([(5, scores)])
    assert figures["kl_divergence"] == 0
    assert figures["kl_worst"]["value"] == 0
    assert figures["top1_agreement"] == 1
    assert figures["perplexity_increase"] == 0
    assert figures["logits_cosine"] == pytest.approx(1)
    assert (figures["tokens"], figures["records"]) == (70, 1)


def test_a_summary_is_over_all_tokens_of_all_records() -> None:
    texts = {7: 20, 3: 90, 12: 2}
    scores = [
        (
            record,
            score_tokens(logits_of(count, record), logits_of(count, record + 100), range(count)),
        )
        for record, count in texts.items()
        for count in [min(count, 11)]
    ]
    figures = summarize(scores)
    kl = [value for _, score in scores for value in score.kl]
    loss = [value for _, score in scores for value in score.loss]
    reference = [value for _, score in scores for value in score.reference_loss]
    assert figures["tokens"] == len(kl) == 24
    assert figures["records"] == 3
    assert figures["kl_divergence"] == pytest.approx(sum(kl) / len(kl))
    assert figures["kl_p99"] <= figures["kl_worst"]["value"] == max(kl)
    perplexity = math.exp(sum(loss) / len(loss))
    perplexity_float = math.exp(sum(reference) / len(reference))
    assert figures["perplexity"] == pytest.approx(perplexity)
    assert figures["perplexity_float"] == pytest.approx(perplexity_float)
    assert figures["perplexity_increase"] == pytest.approx(perplexity / perplexity_float - 1)
    assert figures["logits_cosine_worst"] == min(value for _, s in scores for value in s.cosine)


def test_the_worst_token_is_named() -> None:
    texts = []
    for record, change in ((4, 0.1), (9, 3.0), (2, 0.2)):
        reference = logits_of(8, record)
        found = reference.copy()
        found[5] -= change * np.arange(11, dtype=np.float32)
        texts.append((record, score_tokens(reference, found, range(8))))
    worst = summarize(texts)["kl_worst"]
    assert (worst["record"], worst["position"]) == (9, 5)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 50), st.floats(-1e4, 1e4))
def test_scores_do_not_depend_on_a_shift(seed: int, scale: float, shift: float) -> None:
    reference, found = logits_of(4, seed, scale), logits_of(4, seed + 1, scale)
    plain = score_tokens(reference, found, [1, 2, 3, 4])
    moved = score_tokens(reference.astype(np.float64) + shift, found, [1, 2, 3, 4])
    assert np.all(plain.kl > -1e-9)
    np.testing.assert_allclose(plain.kl, moved.kl, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(plain.reference_loss, moved.reference_loss, rtol=1e-6, atol=1e-6)


def test_dead_logits_are_figures_and_not_an_error() -> None:
    reference = logits_of(6, 0)
    figures = summarize([(0, score_tokens(reference, np.zeros_like(reference), range(6)))])
    assert figures["logits_cosine"] == 0
    assert figures["perplexity"] == pytest.approx(11)
    assert all(np.isfinite(v) for v in figures.values() if isinstance(v, float))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_cosine_does_not_depend_on_the_pieces(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    left, right = (random.standard_normal(sum(sizes)).astype(np.float32) for _ in range(2))
    sums, start = CosineSums(), 0
    for size in sizes:
        sums.add("x", left[start : start + size], right[start : start + size])
        start += size
    a, b = left.astype(np.float64), right.astype(np.float64)
    expected = (a @ b) / math.sqrt((a @ a) * (b @ b))
    assert sums.result() == {"x": pytest.approx(expected, abs=1e-12)}


def test_the_cosine_of_nothing() -> None:
    zero, one = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    sums = CosineSums()
    sums.add("both", zero, zero)
    sums.add("dead", one, zero)
    sums.add("same", one, 2 * one)
    assert sums.result() == {"both": 1.0, "dead": 0.0, "same": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [([], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([1], [2], 0), ([1, 2], [1, 3], 1)],
)
def test_agreeing_counts_from_the_start(left: list[int], right: list[int], count: int) -> None:
    assert agreeing(left, right) == agreeing(right, left) == count
