"""Whether what Genie answered is right, from genie.json."""

from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.files import read_json


def require_genie(result: Path) -> None:
    """Raise unless the gate's result says that Genie answers as the CPU does."""
    content = read_json(result)
    if content["passed"]:
        return
    for answer in content["prompts"]:
        question = answer["question"]
        if not answer["same_prompt"]:
            reason = f"Genie makes other tokens of the prompt {question!r} than transformers"
        elif not answer["explained"]:
            worst = max(answer["differences"], key=lambda each: each["margin"])
            reason = (
                f"Genie answers {question!r} otherwise than the CPU at token "
                f"{worst['position'] + 1}, where the CPU prefers its own by {worst['margin']:.3g} "
                f"nats, above the near-tie limit of {content['near_tie_limit']:.3g}"
            )
        elif not answer["same_text"]:
            reason = f"Genie makes another text of the tokens that answer {question!r}"
        else:
            continue
        raise SnapbakeError(
            f"{result}: {reason}; the phone would answer so too, see the texts there"
        )
