"""What Genie answered is judged by what the emulator is known to move."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genie_answers import difference, genie_answers
from snapbake.genie_verdict import judge_genie, near_tie_limit


def test_the_limit_is_what_the_emulator_moved(tmp_path: Path) -> None:
    cpu = np.array([[5.0, 1.0, 4.0], [0.0, 3.0, 2.5]], np.float32)
    moved = np.array([[5.0, 9.0, 4.25], [0.0, 2.5, 2.5]], np.float32)
    np.savez(tmp_path / "cpu.npz", reading_0_logits=cpu, answer_ids=[1])
    np.savez(tmp_path / "emulator.npz", reading_0_logits=moved, reading_0_cache=[1.0])
    # 0.25 between tokens 0 and 2 of the first row, 0.5 between 1 and 2 of the second.
    assert near_tie_limit(tmp_path / "emulator.npz", tmp_path / "cpu.npz") == 0.5


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_logits_that_are_not_finite_excuse_nothing(tmp_path: Path, value: float) -> None:
    cpu = np.array([[5.0, 1.0, 4.0], [0.0, 3.0, 2.5]], np.float32)
    moved = cpu.copy()
    moved[0, 0] = value
    np.savez(tmp_path / "cpu.npz", reading_0_logits=cpu)
    np.savez(tmp_path / "emulator.npz", reading_0_logits=moved)
    limit = near_tie_limit(tmp_path / "emulator.npz", tmp_path / "cpu.npz")
    assert limit is None
    assert judge_genie(genie_answers(), limit)["passed"]
    (failure,) = judge_genie(genie_answers(differences=[difference(1e-9)]), limit)["failures"]
    assert "logits of the held-out text are not finite" in failure


def test_equal_answers_pass_and_are_counted() -> None:
    answers = genie_answers()
    answers["prompts"] *= 2
    assert judge_genie(answers, 0.1) == {
        "passed": True,
        "failures": [],
        "near_tie_limit": 0.1,
        "prompts": 2,
        "tokens": 6,
        "agreeing_with_cpu": 6,
        "agreeing_with_float": 4,
        "largest_margin": None,
    }


def test_a_near_tie_passes_and_its_margin_is_told() -> None:
    answers = genie_answers(differences=[difference(0.1), difference(0.02)], agreeing_with_cpu=2)
    verdict = judge_genie(answers, 0.1)
    assert verdict["passed"]
    assert verdict["largest_margin"] == 0.1
    assert verdict["agreeing_with_cpu"] == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"differences": [difference(0.02), difference(0.7)]},
            'Genie answers "What\'s <b>it</b>?" otherwise than the CPU at token 3, where the CPU '
            "prefers its own by 0.7 nats, above the near-tie limit of 0.1",
        ),
        ({"same_prompt": False}, "other tokens of the prompt"),
        ({"same_text": False}, "another text of the tokens that answer"),
        ({"stopped": False}, "goes on after the token that should end its answer"),
        # What is wrong with the prompt explains the rest.
        ({"same_prompt": False, "differences": [difference(9.0)]}, "other tokens of the prompt"),
    ],
)
def test_what_failed_is_said(change: dict[str, Any], words: str) -> None:
    answers = genie_answers(**change)
    answers["prompts"] += genie_answers()["prompts"]
    verdict = judge_genie(answers, 0.1)
    assert not verdict["passed"]
    (failure,) = verdict["failures"]
    assert words in failure
