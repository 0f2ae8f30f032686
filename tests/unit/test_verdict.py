"""A verdict keeps its figures whether limits are kept or missed; accepting fails with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract_graphs import token_ids
from genie_answers import difference, genie_answers
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json
from snapbake.metrics import score_tokens, summarize
from snapbake.subset import Answer, Reading, Subset, save_arrays, save_subset
from snapbake.verdict import accept_target, parse_limits, verify_target

VOCABULARY = 50
ALL_KEPT = {
    "kl_divergence": 0.5,
    "logits_cosine": 0.5,
    "perplexity_increase": 0.9,
    "top1_agreement": 0.1,
}


def test_limits_are_read() -> None:
    assert parse_limits([]) == {}
    words = ["kl_divergence=0.03", "top1_agreement=.93", "perplexity_increase=-4e-2"]
    assert parse_limits(words) == {
        "kl_divergence": 0.03,
        "top1_agreement": 0.93,
        "perplexity_increase": -0.04,
    }


@pytest.mark.parametrize(
    "word",
    [
        "kl=0.1",
        "kl_divergence",
        "kl_divergence=",
        "=0.1",
        "kl_divergence=low",
        "kl_divergence=nan",
        "logits_cosine=inf",
        "perplexity=10",
        "kl_divergence:0.1",
        "",
    ],
)
def test_what_is_no_limit_is_refused(word: str) -> None:
    with pytest.raises(SnapbakeError) as failure:
        parse_limits(["top1_agreement=0.9", word])
    assert str(failure.value).startswith(f"{word!r} is not a limit; write name=number with one of ")
    assert "logits_cosine, kl_divergence, top1_agreement" in str(failure.value)


class Case:
    """The files of two readings: PyTorch, the CPU a little off, the emulator a little more."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.folder = folder
        self.readings = []
        self.found: dict[str, np.ndarray] = {}
        self.cpu: dict[str, np.ndarray] = {}
        for number, (record, count) in enumerate([(31, 20), (8, 9)]):
            logits = 3 * random.standard_normal((count, VOCABULARY)).astype(np.float32)
            cache = random.standard_normal((2, 2, 1, count, 8)).astype(np.float32)
            ids = tuple(token_ids(count, record, VOCABULARY))
            self.readings.append(Reading(record, ids, logits, cache))
            for arrays, noise in ((self.cpu, 0.1), (self.found, 0.2)):
                change = noise * random.standard_normal(logits.shape).astype(np.float32)
                arrays[f"reading_{number}_logits"] = logits + change
            self.found[f"reading_{number}_cache"] = cache
        self.cpu["answer_ids"] = np.array([5, 6, 7, 8])
        self.found["answer_ids"] = np.array([5, 6, 9])
        self.genie = genie_answers()
        self.answer = Answer(4, (1, 2), 4, (5, 6, 7, 9), (0.4, 0.3, 0.2, 0.1))

    def verify(self, limits: dict[str, float]) -> dict[str, Any]:
        paths = {name: self.folder / name for name in ("found.npz", "cpu.npz", "reference.npz")}
        save_arrays(paths["found.npz"], self.found)
        save_arrays(paths["cpu.npz"], self.cpu)
        save_subset(paths["reference.npz"], Subset(tuple(self.readings), (self.answer,), (2,)))
        write_json(self.folder / "run.json", {"seconds": 12.5, "weights_sha256": "ab" * 32})
        write_json(
            self.folder / "evaluation.json",
            {
                **self.scores(self.cpu),
                "kv_cosine": {"past_key_0": 0.9},
                "answers": [{"long": "text"}],
            },
        )
        write_json(self.folder / "genie.json", self.genie)
        verify_target(
            self.folder / "run.json",
            paths["found.npz"],
            self.folder / "evaluation.json",
            paths["cpu.npz"],
            paths["reference.npz"],
            self.folder / "genie.json",
            limits,
            self.folder / "verify.json",
        )
        return read_json(self.folder / "verify.json")

    def scores(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return summarize(
            [
                (each.record, score_tokens(each.logits, arrays[f"reading_{n}_logits"], each.ids))
                for n, each in enumerate(self.readings)
            ]
        )

    def accept(self) -> str:
        accept_target(self.folder / "verify.json", self.folder / "accepted.txt")
        return (self.folder / "accepted.txt").read_text()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_the_figures_are_those_of_the_metrics(case: Case) -> None:
    verdict = case.verify(ALL_KEPT)
    expected = case.scores(case.found)
    assert verdict["emulator"] == expected | {"kv_cosine": verdict["emulator"]["kv_cosine"]}
    assert verdict["cpu_on_emulator_text"] == case.scores(case.cpu)
    assert verdict["cpu"] == case.scores(case.cpu) | {"kv_cosine": {"past_key_0": 0.9}}
    against = verdict["emulator_against_cpu"]
    assert 0 < against["kl_divergence"] < verdict["emulator"]["kl_divergence"] * 2
    assert against["perplexity_float"] == pytest.approx(case.scores(case.cpu)["perplexity"])
    assert verdict["seconds"] == 12.5
    assert verdict["weights_sha256"] == "ab" * 32
    assert verdict["answer"] == {
        "record": 4,
        "tokens": 3,
        "agreeing_with_cpu": 2,
        "agreeing_with_float": 2,
        "margin_at_difference": 0.2,
    }


def test_the_cosine_of_the_cache_is_over_all_readings(case: Case) -> None:
    case.found["reading_1_cache"] = case.found["reading_1_cache"].copy()
    case.found["reading_1_cache"][1, 0] *= -1
    cosines = case.verify({})["emulator"]["kv_cosine"]
    references = [reading.cache[1, 0].astype(np.float64) for reading in case.readings]
    squares = [float((each**2).sum()) for each in references]
    expected = (squares[0] - squares[1]) / sum(squares)
    assert cosines.pop("past_key_1") == pytest.approx(expected)
    assert cosines == {
        name: pytest.approx(1.0) for name in ("past_key_0", "past_value_0", "past_value_1")
    }


def test_kept_limits_are_accepted_with_their_figures(case: Case) -> None:
    verdict = case.verify(ALL_KEPT)
    assert verdict["accepted"] is True
    places = [(check["figure"], check["where"]) for check in verdict["checks"]]
    assert places == [(name, where) for where in ("emulator", "cpu") for name in sorted(ALL_KEPT)]
    lines = case.accept().splitlines()
    assert len(lines) == 9
    assert lines[-1] == "Genie: 3 of 3 tokens as on the CPU (prompts: 1)"
    figure = verdict["emulator"]["kl_divergence"]
    assert lines[0] == f"kl_divergence on the emulator: {figure:.6g} (limit 0.5)"


def test_a_missed_limit_is_a_verdict_with_all_figures(case: Case) -> None:
    kept = case.verify(ALL_KEPT)
    missed = case.verify(ALL_KEPT | {"kl_divergence": 1e-6})
    assert missed["accepted"] is False
    for name in ("emulator", "cpu", "emulator_against_cpu", "answer"):
        assert missed[name] == kept[name]
    assert [check["passed"] for check in missed["checks"]] == [False, True, True, True] * 2


def test_a_missed_limit_is_refused_with_place_and_distance(case: Case) -> None:
    verdict = case.verify({"kl_divergence": 1e-4, "top1_agreement": 1.0, "logits_cosine": 0.5})
    with pytest.raises(SnapbakeError) as failure:
        case.accept()
    message = str(failure.value)
    figures, worst = verdict["emulator"], verdict["emulator"]["kl_worst"]
    over = figures["kl_divergence"] - 1e-4
    assert message.startswith(f"{case.folder / 'verify.json'}: the KL divergence ")
    assert (
        f"on the emulator is {figures['kl_divergence']:.6g}, {over:.3g} above the limit of 0.0001 "
        f"(worst at record {worst['record']}, position {worst['position']})"
    ) in message
    under = 1.0 - figures["top1_agreement"]
    assert (
        f"same first choice on the emulator is {figures['top1_agreement']:.6g}, {under:.3g} below "
        "the limit of 1"
    ) in message
    assert "KL divergence of the next-token distributions on the cpu is" in message
    assert "cosine" not in message
    assert message.endswith("change the recipe's limits in config/recipes.yaml")
    assert not (case.folder / "accepted.txt").exists()


def test_a_limit_that_is_met_exactly_is_kept(case: Case) -> None:
    figures = case.verify({})["emulator"]
    for name in ALL_KEPT:
        verdict = case.verify({name: figures[name]})
        assert verdict["checks"][0]["passed"], name


def test_a_dead_binary_gets_a_verdict(case: Case) -> None:
    for name in ("reading_0_logits", "reading_1_logits", "reading_0_cache", "reading_1_cache"):
        case.found[name] = np.zeros_like(case.found[name])
    verdict = case.verify({"logits_cosine": 0.9999})
    assert verdict["accepted"] is False
    assert verdict["emulator"]["logits_cosine"] == 0
    assert set(verdict["emulator"]["kv_cosine"].values()) == {0.0}
    with pytest.raises(SnapbakeError, match=r"cosine of the logits on the emulator is 0, 1 below"):
        case.accept()


def test_no_limits_accept_everything(case: Case) -> None:
    assert case.verify({})["accepted"] is True
    assert case.accept().startswith("Genie: 3 of 3 tokens")


def test_genie_at_odds_with_the_cpu_is_refused(case: Case) -> None:
    case.genie = genie_answers(differences=[difference(50.0)])
    verdict = case.verify(ALL_KEPT)
    assert verdict["accepted"] is False
    assert all(check["passed"] for check in verdict["checks"])
    assert 0 < verdict["genie"]["near_tie_limit"] < 50
    with pytest.raises(SnapbakeError, match=r"CPU at token 3, .* by 50 nats.* phone would answer"):
        case.accept()
    assert not (case.folder / "accepted.txt").exists()


def test_all_that_is_missed_is_said_at_once(case: Case) -> None:
    case.genie = genie_answers(same_prompt=False)
    case.verify({"kl_divergence": 1e-4})
    with pytest.raises(SnapbakeError, match=r"KL divergence .*; Genie makes other tokens of the"):
        case.accept()
