"""How the report writes figures: their names for people, their numbers, what a limit means."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NBSP = "\N{NO-BREAK SPACE}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Measure:
    """A figure that a recipe may have a limit for.

    `lower_is_better` says on which side of the limit it must be; `question` is what it answers.
    """

    name: str
    title: str
    question: str
    lower_is_better: bool

    def write(self, value: float) -> str:
        """Return a value as people read it."""
        match self.name:
            case "kl_divergence":
                return small(value)
            case "logits_cosine":
                return cosine(value)
            case "top1_agreement":
                return f"{floor(100 * value, 2):.2f}{_NBSP}%"
        if value > 10:
            return f"over{_NBSP}+1000{_NBSP}%"
        return f"{round(100 * value, 2) + 0.0:+.2f}{_NBSP}%".replace("-", "−")

    def write_limit(self, limit: float) -> str:
        """Return a limit with its sign."""
        sign = ("≤" if self.lower_is_better else "≥") + _NBSP
        match self.name:
            case "top1_agreement":
                return f"{sign}{100 * limit:g}{_NBSP}%"
            case "perplexity_increase":
                return f"{sign}{100 * limit:+g}{_NBSP}%"
        return f"{sign}{limit:g}"

    def write_miss(self, check: Mapping[str, Any]) -> str:
        """Say by how much an entry of a verdict's checks misses its limit."""
        gap = abs(check["found"] - check["limit"])
        side = "above" if self.lower_is_better else "below"
        match self.name:
            case "top1_agreement" | "perplexity_increase":
                points = f"{100 * gap:.2g}" if gap < 1 else "over 100"
                return f"{points} points {side} the limit"
        return f"{small(gap)} {side} the limit"


MEASURES = (
    Measure(
        "kl_divergence",
        "KL divergence",
        "How far are its predictions from the original's? (nats a token, 0 is none)",
        True,
    ),
    Measure(
        "top1_agreement",
        "Same first choice",
        "How often does it choose the same next token as the original?",
        False,
    ),
    Measure(
        "perplexity_increase",
        "Perplexity",
        "How much more does real text surprise it than the original?",
        True,
    ),
    Measure(
        "logits_cosine",
        "Likeness of the logits",
        "How alike are the raw scores of all tokens? (cosine, 1 is equal)",
        False,
    ),
)


def small(value: float) -> str:
    """Return a number that is mostly near zero with its first digits: 0.00792, 1.3 × 10⁻⁶."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    return _with_exponent(value)


def perplexity(value: float) -> str:
    """Return a perplexity, which is 1 or more, with two decimals or an exponent."""
    return f"{value:.2f}" if value < 1e5 else _with_exponent(value)


def _with_exponent(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}{_NBSP}×{_NBSP}10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def cosine(value: float) -> str:
    """Return a cosine with six digits, cut and not rounded, so that only 1 reads as 1."""
    return f"{floor(value, 6):.6f}"


def floor(value: float, digits: int) -> float:
    """Return `value` cut to `digits` behind the point, so that it never reads as more than it is.

    A millionth of a step is forgiven, as decimal numbers are not exact in binary.
    """
    return math.floor(value * 10**digits + 1e-6) / 10**digits


def odds(margin: float) -> str:
    """Return how much likelier a model found its own token than another: 1.28 : 1.

    `margin` is the difference of their log-probabilities in nats.
    """
    ratio = math.exp(margin)
    if ratio >= 1000:
        return f"over 1000{_NBSP}:{_NBSP}1"
    return f"{ratio:.2f}{_NBSP}:{_NBSP}1" if ratio < 10 else f"{ratio:.0f}{_NBSP}:{_NBSP}1"


def size(count: float) -> str:
    """Return a number of bytes in MB or GB (10^6 and 10^9)."""
    if count >= 1e9:
        return f"{count / 1e9:.2f}{_NBSP}GB"
    digits = 1 if count >= 1e7 else 2
    return f"{count / 1e6:.{digits}f}{_NBSP}MB"


def duration(seconds: float) -> str:
    """Return seconds as 4.2 s, 31 s, 3 min 05 s or 2 h 03 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 record, 32 records."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", "\N{THIN SPACE}")
