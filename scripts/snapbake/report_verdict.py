"""The verdict page: is each binary fit for the phone, and if not, what is missed by how much."""

from collections.abc import Mapping
from html import escape
from typing import Any

from snapbake.report_figures import Binary, Figures
from snapbake.report_html import cells, page, table
from snapbake.report_words import MEASURES, Measure, cosine, odds, perplexity, plural, size, small

_ACCEPTED = '<span class="good verdict">✔ accepted</span>'
_REFUSED = '<span class="bad verdict">✘ not accepted</span>'
_SCOPE = (
    "<p>Fit means: as faithful to the original model as the recipe promises. Whether the original "
    "is good at its task, and how fast the phone will be, is not judged here.</p>"
)


def verdict_page(figures: Figures) -> str:
    """Return the page as HTML."""
    body = _banner(figures)
    if len(figures.binaries) > 1:
        body += _overview(figures)
    body += "<h2>Each binary and its limits</h2>\n" + _legend()
    body += "".join(_card(figures, binary) for binary in figures.binaries)
    body += _origin(figures)
    return page("Is the model fit for the phone?", body)


def _banner(figures: Figures) -> str:
    refused = [binary for binary in figures.binaries if not binary.accepted]
    count = len(figures.binaries)
    if not refused:
        sentence = (
            "Fit for the phone: the binary keeps every limit of its recipe, "
            if count == 1
            else f"Fit for the phone: {'both' if count == 2 else f'all {count}'} binaries keep "
            "every limit of their recipes, "
        ) + "and Genie answers as the CPU does."
        return f'<div class="banner good"><h1>✔ {sentence}</h1>{_SCOPE}</div>\n'
    sentence = (
        "Not fit for the phone."
        if count == 1
        else f"{len(refused)} of {count} binaries "
        + ("is" if len(refused) == 1 else "are")
        + " not fit for the phone."
    )
    misses = "".join(
        f"<li><strong>{escape(_name(figures, binary))}</strong>: "
        f"{'; '.join(_short_misses(binary))}</li>"
        for binary in refused
    )
    return f'<div class="banner bad"><h1>✘ {sentence}</h1>{_SCOPE}</div>\n<ul>{misses}</ul>\n'


def _name(figures: Figures, binary: Binary) -> str:
    """Name a binary in full."""
    key = binary.key
    return f"{key.model}, {key.context} tokens, {key.recipe}, {figures.part(binary.soc)}"


def _short_misses(binary: Binary) -> list[str]:
    """Say in a few words which limits are missed, with the figures."""
    told = []
    for measure in MEASURES:
        missed = [
            (where, check)
            for where in ("emulator", "cpu")
            if (check := binary.check(measure.name, where)) and not check["passed"]
        ]
        found = [
            f'{_place(where)} <span class="bad">{measure.write(check["found"])}</span>'
            for where, check in missed
        ]
        if missed:
            limit = measure.write_limit(missed[0][1]["limit"])
            told.append(f"misses {measure.title} ({', '.join(found)}; limit {limit})")
    return told + [escape(failure) for failure in binary.verdict["genie"]["failures"]]


def _place(where: str) -> str:
    return {"emulator": "emulator", "cpu": "CPU"}[where]


def _overview(figures: Figures) -> str:
    head = cells("th", "Recipe", "Chip", "Verdict")
    head += cells("th", "KL divergence", "Same first choice", "Perplexity", "Size", kind="number")
    rows = []
    heading = None
    for binary in figures.binaries:
        key, emulator = binary.key, binary.verdict["emulator"]
        if heading != (key.model, key.context):
            heading = (key.model, key.context)
            name = f"{escape(key.model)}, context of {key.context} tokens"
            rows.append(f'<th colspan="7">{name}</th>')
        names = (escape(key.recipe), escape(figures.part(binary.soc)))
        row = cells("td", *names, _ACCEPTED if binary.accepted else _REFUSED)
        for measure in MEASURES[:3]:
            row += _value(binary, measure, "emulator", emulator, brief=True)
        row += cells("td", size(binary.manifest["binary"]["bytes"]), kind="number")
        rows.append(row)
    return "<h2>All binaries, on the emulator</h2>\n" + table(head, rows)


def _legend() -> str:
    return (
        "<p>Everything is held against the original model in PyTorch at full precision, on text "
        "that calibration never saw. The <strong>emulator</strong> is Qualcomm's own: it imitates "
        "the chip's arithmetic, so slowly that it reads only a part of the text. The "
        "<strong>CPU</strong> runs the same graph in onnxruntime and reads all of it. Where both "
        "read the same text, what differs comes from the chip's arithmetic.</p>\n"
    )


def _card(figures: Figures, binary: Binary) -> str:
    key, verdict, manifest = binary.key, binary.verdict, binary.manifest
    emulator, cpu, same = (verdict[part] for part in ("emulator", "cpu", "cpu_on_emulator_text"))
    head = cells("th", "Against the original model")
    head += cells(
        "th",
        f"Emulator<br>{_text_read(emulator)}",
        f"CPU<br>{_text_read(same)}",
        f"CPU<br>{_text_read(cpu)}",
        "Limit",
        kind="number",
    )
    rows = []
    for measure in MEASURES:
        limit = binary.check(measure.name, "emulator")
        row = cells("td", f'{measure.title}<br><small class="soft">{measure.question}</small>')
        row += _value(binary, measure, "emulator", emulator)
        row += _value(binary, measure, None, same)
        row += _value(binary, measure, "cpu", cpu)
        row += cells("td", measure.write_limit(limit["limit"]) if limit else "–", kind="number")
        rows.append(row)
    row = cells(
        "td",
        'KV cache<br><small class="soft">How alike is what it remembers of the text, in the worst '
        "tensor? (cosine)</small>",
    )
    row += cells("td", _worst_cache(emulator), "–", _worst_cache(cpu), "–", kind="number")
    rows.append(row)
    return (
        f'<div class="card{"" if binary.accepted else " bad"}">\n<div class="head"><h3>'
        f"{escape(figures.chip(binary.soc))} · {escape(key.recipe)}</h3>"
        f"{_ACCEPTED if binary.accepted else _REFUSED}</div>\n"
        f'<p class="soft">{escape(key.model)}, context of {key.context} tokens</p>\n'
        + table(head, rows)
        + f"<p>{_worst_tokens(verdict)} {_against_cpu(verdict)} {_answer(verdict['answer'])}</p>\n"
        + f"<p>{_genie(verdict['genie'])}</p>\n"
        + f'<p class="soft"><small>For the phone: <code>{escape(_path(binary))}</code>, '
        f"{size(manifest['binary']['bytes'])}, compiled by QAIRT "
        f"{escape(str(manifest['qairt_build']))}, SHA-256 "
        f"<code>{escape(manifest['binary']['sha256'])}</code></small></p>\n</div>\n"
    )


def _text_read(summary: Mapping[str, Any]) -> str:
    return (
        f'<small class="soft">{plural(summary["tokens"], "token")} of '
        f"{plural(summary['records'], 'record')}</small>"
    )


def _value(
    binary: Binary,
    measure: Measure,
    where: str | None,
    found: Mapping[str, Any],
    brief: bool = False,
) -> str:
    """Return the cell of a figure; `where` is None for one that has no limit.

    A brief cell does not say that a limit is kept, nor by how much it is missed.
    """
    check = binary.check(measure.name, where) if where else None
    text = measure.write(found[measure.name])
    if measure.name == "perplexity_increase":
        text = (
            f"{perplexity(found['perplexity_float'])} → {perplexity(found['perplexity'])}<br>{text}"
        )
    if check and not check["passed"]:
        miss = "" if brief else f"<br><small>{measure.write_miss(check)}</small>"
        return cells("td", f'<span class="bad">{text} ✘{miss}</span>', kind="number missed")
    kept = ' <span class="good">✔</span>' if check and not brief else ""
    return cells("td", text + kept, kind="number")


def _worst_cache(figures: Mapping[str, Any]) -> str:
    name, value = min(figures["kv_cosine"].items(), key=lambda entry: entry[1])
    kind, _, layer = name.removeprefix("past_").partition("_")
    return f'{cosine(value)}<br><small class="soft">{kind}s of layer {layer}</small>'


def _worst_tokens(verdict: Mapping[str, Any]) -> str:
    places = []
    for where in ("emulator", "cpu"):
        worst = verdict[where]["kl_worst"]
        places.append(
            f"on the {_place(where)} at position {worst['position']} of record {worst['record']} "
            f"(KL divergence {small(worst['value'])})"
        )
    return f"Furthest off is the token {' and '.join(places)}."


def _against_cpu(verdict: Mapping[str, Any]) -> str:
    found = verdict["emulator_against_cpu"]
    kl, first_choice = MEASURES[:2]
    return (
        f"Emulator against CPU, on the same graph and text: KL divergence "
        f"{small(found[kl.name])}, the same first choice for "
        f"{first_choice.write(found[first_choice.name])} of the tokens."
    )


def _answer(answer: Mapping[str, Any]) -> str:
    margin = answer["margin_at_difference"]
    told = (
        "Of its answer to a question on the emulator, the first "
        f"{answer['agreeing_with_float']} of {plural(answer['tokens'], 'token')} are the original's"
    )
    if margin is not None:
        told += (
            f" (whose odds for its own next token against its second choice were {odds(margin)})"
        )
    return f"{told}, and the first {answer['agreeing_with_cpu']} are the CPU's."


def _genie(verdict: Mapping[str, Any]) -> str:
    if not verdict["passed"]:
        failures = "; ".join(map(escape, verdict["failures"]))
        return f'<span class="bad">✘ {failures}.</span>'
    prompts, tokens = plural(verdict["prompts"], "prompt"), plural(verdict["tokens"], "token")
    told = (
        f'<span class="good">✔</span> Genie, the runtime of the phone, answered {prompts} on the '
        f"emulator; {verdict['agreeing_with_cpu']} of {tokens} are the CPU's"
    )
    if verdict["largest_margin"] is not None:
        told += f" (where they part, the CPU's odds were {odds(verdict['largest_margin'])} or less)"
    return f"{told}, and {verdict['agreeing_with_float']} the original's."


def _path(binary: Binary) -> str:
    key = binary.key
    return f"results/{key.model}/c{key.context}/{key.recipe}/{binary.soc}/context.bin"


def _origin(figures: Figures) -> str:
    """Say what the models are and how well their graphs agreed before any recipe."""
    items = []
    for (model, context), check in figures.checks.items():
        summary = figures.summaries[model]
        fractions = [
            difference["fraction"]
            for graphs in check["stages"].values()
            for kinds in graphs.values()
            for difference in kinds.values()
        ]
        items.append(
            f"<li><strong>{escape(model)}</strong>, context of {context} tokens: "
            f"{escape(summary['architecture'])} with "
            f"{summary['parameters'] / 1e6:.1f} million weights, from "
            f"<code>{escape(_source(summary))}</code>. Before any recipe, its graphs gave what "
            f"PyTorch does: the largest difference is {small(max(fractions))} of the range, and "
            f"{check['limit']:g} is allowed.</li>"
        )
    return f"<h2>What it was made of</h2>\n<ul>{''.join(items)}</ul>\n"


def _source(summary: Mapping[str, Any]) -> str:
    return str(summary["source"]["location"])
