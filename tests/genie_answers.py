"""A genie.json of one answer, as run_genie writes it."""

from typing import Any

ANSWER: dict[str, Any] = {
    "question": "What's <b>it</b>?",
    "prompt_tokens": 9,
    "seconds": 4.2,
    "float": {"tokens": [1, 2, 3], "margins": [3.0, 2.0, 0.25], "text": "It is so."},
    "cpu": {"tokens": [1, 2, 4], "text": "It is & was."},
    "genie": {"tokens": [1, 2, 4], "text": "It is & was."},
    "agreeing_with_cpu": 3,
    "agreeing_with_float": 2,
    "differences": [],
    "same_prompt": True,
    "same_text": True,
    "stopped": True,
}


def genie_answers(**changes: Any) -> dict[str, Any]:
    """Return the content of a genie.json whose answer has these entries of its own."""
    return {"tokens": 3, "load_seconds": 1.5, "prompts": [{**ANSWER, **changes}]}


def difference(margin: float) -> dict[str, Any]:
    """Return a difference at the third token, which the CPU likes less by `margin` nats."""
    return {"position": 2, "genie": 5, "cpu": 4, "margin": margin}
