"""The answers page: what the original model and each recipe say to the same questions."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import takewhile
from typing import Any

from snapbake.report_figures import Figures, RecipeKey
from snapbake.report_html import cells, page, table
from snapbake.report_words import odds, plural

# A word, a single sign, or space. Scripts without spaces between words go sign by sign.
_PIECES = re.compile(r"\s+|[^\W⺀-鿿가-힣]+|.", re.DOTALL)


def answers_page(figures: Figures) -> str:
    """Return the page as HTML."""
    groups: dict[tuple[str, int], list[RecipeKey]] = {}
    for key in figures.evaluations:
        groups.setdefault((key.model, key.context), []).append(key)
    body = (
        "<h1>Answers of the original and of each recipe</h1>\n"
        "<p>Questions that calibration never saw, answered greedily: always the likeliest next "
        "token. So answers begin alike, and after the first token that differs they go their own "
        'ways, which need not be worse. <span class="soft">What a recipe says like the original '
        "is pale</span>, its first other word is <mark>marked</mark>. Odds such as 1.10&nbsp;:"
        "&nbsp;1 say how much likelier the original found its own token there than its second "
        "choice: near 1&nbsp;:&nbsp;1 either was as good.</p>\n"
        "<p>The original is PyTorch at full precision. The recipes' texts come from the CPU; the "
        "emulator answered the first question, with few tokens. Long answers are cut.</p>\n"
    )
    for (model, context), keys in groups.items():
        body += f"<h2>{escape(model)}, context of {context} tokens</h2>\n"
        body += _table(figures, keys)
    return page("Answers of the original and of each recipe", body)


def _table(figures: Figures, keys: Sequence[RecipeKey]) -> str:
    head = cells("th", "Question", "Original", *(escape(key.recipe) for key in keys))
    by_record: dict[int, dict[RecipeKey, Mapping[str, Any]]] = {}
    for key in keys:
        for answer in figures.evaluations[key]["answers"]:
            by_record.setdefault(answer["record"], {})[key] = answer
    rows = []
    for record, answers in by_record.items():
        first = next(iter(answers.values()))
        row = cells("td", _question(first), f'<div class="answer">{escape(first["float"])}</div>')
        for key in keys:
            answer = answers.get(key)
            row += cells("td", _answer(figures, key, record, answer) if answer else "–")
        rows.append(row)
    return table(head, rows)


def _question(answer: Mapping[str, Any]) -> str:
    return (
        f'<div class="question answer">{escape(answer["prompt"])}</div>'
        f'<small class="soft">record {answer["record"]}</small>'
        f"<details><summary><small>Answer in the data</small></summary>"
        f'<div class="answer soft"><small>{escape(answer["expected"])}</small></div></details>'
    )


def _answer(figures: Figures, key: RecipeKey, record: int, answer: Mapping[str, Any]) -> str:
    shared, other, rest = split_at_difference(answer["float"], answer["recipe"])
    text = f'<span class="soft">{escape(shared)}</span>'
    if other:
        text += f"<mark>{escape(other)}</mark>{escape(rest)}"
    elif shared != answer["float"]:
        text += "<mark>(ends here)</mark>"
    agreeing, tokens = answer["agreeing_tokens"], answer["tokens"]
    equal = agreeing == tokens and shared == answer["float"] and not other
    note = (
        f'<span class="good">✔ all {plural(tokens, "token")} alike</span>'
        if equal
        else _alike(agreeing, tokens, answer["margin_at_difference"])
    )
    lines = [note, *_on_emulator(figures, key, record)]
    return f'<div class="answer">{text}</div><p><small>{"<br>".join(lines)}</small></p>'


def _on_emulator(figures: Figures, key: RecipeKey, record: int) -> list[str]:
    lines = []
    for binary in figures.binaries_of(key):
        answer = binary.verdict["answer"]
        if answer["record"] == record:
            lines.append(
                f"Emulator, {escape(figures.part(binary.soc))}: "
                + _alike(
                    answer["agreeing_with_float"], answer["tokens"], answer["margin_at_difference"]
                )
            )
    return lines


def _alike(agreeing: int, tokens: int, margin: float | None) -> str:
    told = f"{agreeing} of {plural(tokens, 'token')} alike"
    return told if margin is None else f"{told}, then {odds(margin)}"


def split_at_difference(original: str, text: str) -> tuple[str, str, str]:
    """Split `text` into what it shares with `original` from the start, its first other word, rest.

    Words are whole, as a token is a part of one and often no word by itself, and with the space
    before them when that differs. The last two are empty when `original` begins with `text`.
    """
    left, right = _PIECES.findall(original), _PIECES.findall(text)
    pairs = zip(left, right, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    end = shared + 1
    if right[shared:end] and right[shared].isspace():
        end += 1
    return "".join(right[:shared]), "".join(right[shared:end]), "".join(right[end:])
