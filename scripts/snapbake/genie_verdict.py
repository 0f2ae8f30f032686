"""Does the phone's runtime answer as the CPU does? The judgement of what genie_gate.py measured.

The emulator rounds otherwise than the CPU, so where two tokens are nearly equally good either may
come. How near is measured and not chosen: by how much the emulator moved the distance between the
CPU's two best tokens on the held-out text. A difference above that fails.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def near_tie_limit(outputs: Path, cpu_outputs: Path) -> float | None:
    """Return the most by which the emulator moved the distance of the CPU's two best tokens.

    Over all tokens of the readings of both files, in nats; None when it cannot be told because of
    NaN or infinity. The files are those of run_emulator.py and evaluate_recipe.py (.npz).
    """
    with np.load(outputs) as emulator, np.load(cpu_outputs) as cpu:
        moved = [
            _moved_margins(emulator[name], cpu[name])
            for name in cpu.files
            if name.endswith("_logits")
        ]
    limit = float(np.concatenate(moved).max())
    return limit if math.isfinite(limit) else None


def _moved_margins(emulator: NDArray[np.float32], cpu: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return, a row of logits [n, V], how far the distance of the CPU's two best tokens moved."""
    best = np.argpartition(cpu, -2, axis=-1)[:, -2:]
    theirs, ours = (np.take_along_axis(logits, best, axis=-1) for logits in (emulator, cpu))
    return np.abs((theirs[:, 0] - theirs[:, 1]) - (ours[:, 0] - ours[:, 1]))


def judge_genie(answers: Mapping[str, Any], limit: float | None) -> dict[str, Any]:
    """Return the verdict on the content of a genie.json; `limit` is that of `near_tie_limit`.

    `failures` has one clause for each prompt that failed. Tokens are counted up to the first that
    differs from the CPU's, or from the float model's.
    """
    prompts = answers["prompts"]
    failures = [failure for answer in prompts if (failure := _failure(answer, limit))]
    return {
        "passed": not failures,
        "failures": failures,
        "near_tie_limit": limit,
        "prompts": len(prompts),
        "tokens": sum(len(answer["genie"]["tokens"]) for answer in prompts),
        "agreeing_with_cpu": sum(answer["agreeing_with_cpu"] for answer in prompts),
        "agreeing_with_float": sum(answer["agreeing_with_float"] for answer in prompts),
        "largest_margin": max(
            (each["margin"] for answer in prompts for each in answer["differences"]), default=None
        ),
    }


def _failure(answer: Mapping[str, Any], limit: float | None) -> str | None:
    """Say what is wrong with an answer, if anything is."""
    question = answer["question"]
    worst = max(answer["differences"], key=lambda each: each["margin"], default=None)
    if not answer["same_prompt"]:
        return f"Genie makes other tokens of the prompt {question!r} than transformers"
    if worst is not None and limit is None:
        return (
            f"Genie answers {question!r} otherwise than the CPU at token {worst['position'] + 1}, "
            "and the emulator's logits of the held-out text are not finite, so no near tie excuses "
            "it"
        )
    if worst is not None and worst["margin"] > limit:
        return (
            f"Genie answers {question!r} otherwise than the CPU at token {worst['position'] + 1}, "
            f"where the CPU prefers its own by {worst['margin']:.3g} nats, above the near-tie "
            f"limit of {limit:.3g}"
        )
    if not answer["stopped"]:
        return f"Genie goes on after the token that should end its answer to {question!r}"
    if not answer["same_text"]:
        return f"Genie makes another text of the tokens that answer {question!r}"
    return None
