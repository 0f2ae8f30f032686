"""Is a binary as good as its recipe promises? The figures, the limits, what is missed where."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapbake.errors import SnapbakeError
from snapbake.files import atomic_path, read_json, write_json
from snapbake.genie_verdict import judge_genie, near_tie_limit
from snapbake.metrics import CosineSums, TokenScores, agreeing, score_tokens, summarize
from snapbake.subset import Reading, load_subset

# Name of a figure -> its words in a message, and whether the limit is a lower one.
_LIMITS: Mapping[str, tuple[str, bool]] = {
    "logits_cosine": ("cosine of the logits", True),
    "kl_divergence": ("KL divergence of the next-token distributions", False),
    "top1_agreement": ("share of tokens with the same first choice", True),
    "perplexity_increase": ("increase of perplexity", False),
}


def parse_limits(words: list[str]) -> dict[str, float]:
    """Return limits given as name=value; raises for an unknown name or no number."""
    limits: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            if name not in _LIMITS:
                raise ValueError
            limits[name] = float(value)
            if not math.isfinite(limits[name]):
                raise ValueError
        except ValueError as error:
            raise SnapbakeError(
                f"{word!r} is not a limit; write name=number with one of {', '.join(_LIMITS)}"
            ) from error
    return limits


def verify_target(
    run: Path,
    outputs: Path,
    evaluation: Path,
    cpu_outputs: Path,
    reference: Path,
    genie: Path,
    limits: dict[str, float],
    output: Path,
) -> None:
    """Measure the emulator's outputs against PyTorch and the CPU, judge both, write the verdict.

    `outputs` are the emulator's (.npz), `cpu_outputs` the CPU's of the same text, `reference` is
    PyTorch's; `evaluation` has the CPU's figures over all held-out text, `genie` what the phone's
    runtime answered.
    """
    recorded, on_cpu = read_json(run), read_json(evaluation)
    subset = load_subset(reference)
    against_float: list[tuple[int, TokenScores]] = []
    against_cpu: list[tuple[int, TokenScores]] = []
    same_text: list[tuple[int, TokenScores]] = []
    cosines = CosineSums()
    with np.load(outputs) as found, np.load(cpu_outputs) as on_same_text:
        for number, reading in enumerate(subset.readings):
            name = f"reading_{number}_logits"
            for scores, left, right in (
                (against_float, reading.logits, found[name]),
                (against_cpu, on_same_text[name], found[name]),
                # The same text on the CPU, so that the emulator's figures can be told from it.
                (same_text, reading.logits, on_same_text[name]),
            ):
                scores.append((reading.record, score_tokens(left, right, reading.ids)))
            _add_cache(cosines, reading, found[f"reading_{number}_cache"])
        answer, cpu_answer = (
            tuple(int(token) for token in arrays["answer_ids"]) for arrays in (found, on_same_text)
        )
    emulator = {**summarize(against_float), "kv_cosine": cosines.result()}
    cpu = {
        name: value for name, value in on_cpu.items() if name not in ("answers", "weights_sha256")
    }
    checks = [
        _check(name, limit, where, figures)
        for where, figures in (("emulator", emulator), ("cpu", cpu))
        for name, limit in sorted(limits.items())
    ]
    chat = judge_genie(read_json(genie), near_tie_limit(outputs, cpu_outputs))
    write_json(
        output,
        {
            "accepted": chat["passed"] and all(check["passed"] for check in checks),
            "checks": checks,
            "genie": chat,
            "emulator": emulator,
            "emulator_against_cpu": summarize(against_cpu),
            "cpu": cpu,
            "cpu_on_emulator_text": summarize(same_text),
            "answer": {
                "record": subset.answers[0].record,
                "tokens": len(answer),
                "agreeing_with_cpu": agreeing(cpu_answer, answer),
                "agreeing_with_float": agreeing(subset.answers[0].tokens, answer),
                "margin_at_difference": subset.answers[0].margin_at_difference(answer),
            },
            "seconds": recorded["seconds"],
            "weights_sha256": recorded["weights_sha256"],
        },
    )


def _add_cache(cosines: CosineSums, reading: Reading, cache: NDArray[np.float32]) -> None:
    for layer in range(len(cache)):
        for index, kind in enumerate(("key", "value")):
            reference, found = reading.cache[layer, index], cache[layer, index]
            cosines.add(f"past_{kind}_{layer}", reference, found)


def _check(name: str, limit: float, where: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    found = figures[name]
    passed = found >= limit if _LIMITS[name][1] else found <= limit
    return {"figure": name, "where": where, "limit": limit, "found": found, "passed": passed}


def accept_target(verdict: Path, output: Path) -> None:
    """Write `output` when all of the verdict is good; otherwise say what is missed."""
    content = read_json(verdict)
    missed = [_missed(check, content) for check in content["checks"] if not check["passed"]]
    chat = content["genie"]
    if missed:
        raise SnapbakeError(
            f"{verdict}: {'; '.join([*missed, *chat['failures']])}. See the report for the "
            "answers; use a finer recipe, more calibration records like the held-out ones, or "
            "change the recipe's limits in config/recipes.yaml"
        )
    if not chat["passed"]:
        raise SnapbakeError(
            f"{verdict}: {'; '.join(chat['failures'])}. The phone would answer so too; genie.json "
            "beside it and the report have the texts"
        )
    kept = [
        f"{check['figure']} on the {check['where']}: {check['found']:.6g} "
        f"(limit {check['limit']:g})"
        for check in content["checks"]
    ]
    kept.append(
        f"Genie: {chat['agreeing_with_cpu']} of {chat['tokens']} tokens as on the CPU "
        f"(prompts: {chat['prompts']})"
    )
    with atomic_path(output) as temporary:
        temporary.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _missed(check: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    words, lower = _LIMITS[check["figure"]]
    found, limit = check["found"], check["limit"]
    worst = verdict[check["where"]]["kl_worst"]
    return (
        f"the {words} on the {check['where']} is {found:.6g}, "
        f"{abs(found - limit):.3g} {'below' if lower else 'above'} the limit of {limit:g} "
        f"(worst at record {worst['record']}, position {worst['position']})"
    )
