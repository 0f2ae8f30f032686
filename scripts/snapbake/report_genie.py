"""The page about the phone's runtime: what Genie answers, beside the CPU and the original."""

from collections.abc import Mapping
from html import escape
from typing import Any

from snapbake.report_figures import Binary, Figures
from snapbake.report_html import cells, page, table
from snapbake.report_words import odds, plural

_TITLE = "Answers of Genie, the phone's runtime"


def genie_page(figures: Figures) -> str:
    """Return the page as HTML."""
    body = (
        f"<h1>{_TITLE}</h1>\n"
        "<p>Genie is Qualcomm's own runtime for language models. Here it ran on the HTP emulator "
        "with the bundle's configuration and tokenizer and the proven binaries, and answered with "
        "a few tokens, always the likeliest. The same graphs on the CPU must say the same, unless "
        "two tokens were about equally likely. The original is PyTorch at full precision; a "
        "recipe may go another way from the first near tie on.</p>\n"
    )
    for binary in figures.binaries:
        body += _section(figures, binary)
    return page(_TITLE, body)


def _section(figures: Figures, binary: Binary) -> str:
    key, verdict = binary.key, binary.verdict["genie"]
    name = f"{key.model}, {key.context} tokens, {key.recipe}, {figures.chip(binary.soc)}"
    text = f"<h2>{escape(name)}</h2>\n"
    if verdict["passed"]:
        text += '<p class="good">✔ Genie answers as the CPU does.</p>\n'
    text += "".join(f'<p class="bad">✘ {escape(failure)}.</p>\n' for failure in verdict["failures"])
    head = cells("th", "Question", "Original", "Genie on the emulator", "Genie's tokens")
    text += table(head, [_row(answer) for answer in binary.chat["prompts"]])
    limit = verdict["near_tie_limit"]
    if limit is not None and any(answer["differences"] for answer in binary.chat["prompts"]):
        text += (
            f"<p>A difference counts as a near tie up to {limit:.3g} nats, since the emulator "
            "moved the distance between the CPU's two best tokens that far on held-out text.</p>\n"
        )
    return text


def _row(answer: Mapping[str, Any]) -> str:
    texts = [
        f'<div class="answer">{escape(answer[side]["text"])}</div>' for side in ("float", "genie")
    ]
    tokens = len(answer["genie"]["tokens"])
    agreeing = answer["agreeing_with_float"]
    notes = [
        f"{answer['agreeing_with_cpu']} of {plural(tokens, 'token')} as the CPU",
        f"{agreeing} of {plural(tokens, 'token')} as the original",
    ]
    if agreeing < len(answer["float"]["tokens"]):
        notes[-1] += f", whose odds for its next were {odds(answer['float']['margins'][agreeing])}"
    notes += [
        f"token {each['position'] + 1}: the CPU prefers another by {each['margin']:.3g} nats"
        for each in answer["differences"]
    ]
    if not answer["same_prompt"]:
        notes.append("Genie makes other tokens of the prompt")
    if not answer["stopped"]:
        notes.append("Genie goes on after a token that ends an answer")
    if not answer["same_text"]:
        notes.append("Genie makes another text of the tokens")
    question = f'<div class="question answer">{escape(answer["question"])}</div>'
    return cells("td", question, *texts, "<br>".join(map(escape, notes)))
