"""How far one model's predictions are from another's on the same text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROWS = 64  # rows of logits in float64 at a time

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TokenScores:
    """Measures for each of n positions of a text; `reference` is what the other is held against.

    `kl` is KL(reference || found) of the next-token distributions in nats, `agree` whether both
    rank the same token first, `cosine` that of the logits. `loss` and `reference_loss` are the
    negative log-likelihoods in nats of the text's own next token, n - 1 of them.
    """

    kl: Values
    agree: NDArray[np.bool_]
    cosine: Values
    loss: Values
    reference_loss: Values


def score_tokens(
    reference: NDArray[np.float32], found: NDArray[np.float32], ids: Sequence[int]
) -> TokenScores:
    """Compare two arrays of logits [n, vocabulary] over the text `ids` of n tokens."""
    kl, agree, cosine, loss, reference_loss = [], [], [], [], []
    following = np.append(np.asarray(ids[1:], np.int64), 0)
    for start in range(0, len(ids), _ROWS):
        rows = slice(start, start + _ROWS)
        left, right = reference[rows].astype(np.float64), found[rows].astype(np.float64)
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        # A row of zeros, from a graph that computes nothing, has the cosine 0.
        cosine.append((left * right).sum(axis=1) / np.where(norms == 0, 1, norms))
        agree.append(left.argmax(axis=1) == right.argmax(axis=1))
        left, right = _log_softmax(left), _log_softmax(right)
        kl.append((np.exp(left) * (left - right)).sum(axis=1))
        index = following[rows, None]
        reference_loss.append(-np.take_along_axis(left, index, axis=1)[:, 0])
        loss.append(-np.take_along_axis(right, index, axis=1)[:, 0])
    return TokenScores(
        np.concatenate(kl),
        np.concatenate(agree),
        np.concatenate(cosine),
        np.concatenate(loss)[:-1],
        np.concatenate(reference_loss)[:-1],
    )


def _log_softmax(logits: Values) -> Values:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def summarize(scores: Sequence[tuple[int, TokenScores]]) -> dict[str, Any]:
    """Return the figures over several texts, each given with its record number.

    Perplexity is exp(mean negative log-likelihood); its increase is a fraction, 0.01 being 1 %.
    """
    kl = np.concatenate([score.kl for _, score in scores])
    cosine = np.concatenate([score.cosine for _, score in scores])
    loss = float(np.mean(np.concatenate([score.loss for _, score in scores])))
    reference = float(np.mean(np.concatenate([score.reference_loss for _, score in scores])))
    record, position = _place([(record, score.kl) for record, score in scores])
    return {
        "tokens": len(kl),
        "records": len(scores),
        "kl_divergence": float(kl.mean()),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "kl_worst": {"value": float(kl.max()), "record": record, "position": position},
        "top1_agreement": float(np.mean(np.concatenate([score.agree for _, score in scores]))),
        "logits_cosine": float(cosine.mean()),
        "logits_cosine_worst": float(cosine.min()),
        "perplexity": float(np.exp(loss)),
        "perplexity_float": float(np.exp(reference)),
        "perplexity_increase": float(np.exp(loss - reference) - 1),
    }


def _place(series: Iterable[tuple[int, Values]]) -> tuple[int, int]:
    """Return record and position of the largest value."""
    record, values = max(series, key=lambda entry: entry[1].max())
    return record, int(values.argmax())


class CosineSums:
    """Cosine similarity of named tensors that arrive in pieces."""

    def __init__(self) -> None:
        self._sums: dict[str, Values] = {}

    def add(self, name: str, reference: NDArray, found: NDArray) -> None:
        """Take another piece of a tensor, the same elements of both."""
        left = reference.astype(np.float64).ravel()
        right = found.astype(np.float64).ravel()
        piece = np.array([left @ right, left @ left, right @ right])
        self._sums[name] = self._sums.get(name, np.zeros(3)) + piece

    def result(self) -> dict[str, float]:
        """Return the cosine of each tensor; 1.0 where both are zero throughout."""
        cosines = {}
        for name, (dot, left, right) in self._sums.items():
            norm = float(np.sqrt(left * right))
            cosines[name] = float(dot / norm) if norm else float(left == right)
        return cosines


def agreeing(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common from the start."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
