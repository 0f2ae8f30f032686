"""The report's plots, as SVG that is the same bytes for the same figures.

Colours are those of Okabe and Ito, which colour-blind people can tell apart; red is kept for what
misses a limit. Whatever a colour says, a marker or a text says as well.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from snapbake.report_figures import Figures, RecipeKey, RuleCost
from snapbake.report_words import MEASURES, Measure, duration, plural, size

_BLUE, _ORANGE, _GREEN, _PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
_SKY, _BLACK = "#56B4E9", "#1c2733"
_BAD, _BAD_SHADE, _SOFT, _GRID = "#C1121F", "#FBE3E4", "#5a6875", "#dfe5ea"
_MATRICES, _EMBEDDING = "#c9d1d8", "#93a0ab"
_RECIPE_COLOURS = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _BLACK)
_CHIP_MARKERS = ("o", "D", "^", "v", "P", "X")
_WIDTH = 10.5  # inches; a report's pane at 100 %
_LARGEST_INCREASE = 0.5  # of the perplexity; what is above is drawn there
_LEGEND_COLUMNS = 3
_NINES = 7.0  # what lies above 0.9999999 is drawn there
_LINE = 0.27  # inches of height of a line of text with its marker

_STYLE: Mapping[Any, Any] = {
    "svg.hashsalt": "snapbake",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _BLACK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _BLACK,
    "xtick.color": _BLACK,
    "ytick.color": _BLACK,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
}


@contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        yield


def _svg(figure: Figure) -> str:
    """Return the figure as SVG, without the date and the version that matplotlib would add."""
    stream = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _shortened(text: str, width: int) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= width:
        return text
    end = width // 2
    return f"{text[: width - end - 1]}…{text[-end:]}"


@dataclass(frozen=True)
class _Row:
    """A line of a plot that has its names on the left: a heading, or a value under one."""

    label: str
    group: int
    heading: bool = False


def _label_rows(axes: Axes, rows: Sequence[_Row], width: int, show: bool = True) -> None:
    """Write the rows' names on the left, first row on top, and headings of `width` characters.

    Headings lie inside the plot, where their rows have nothing else, so that they may be long.
    """
    axes.set_ylim(len(rows) - 0.4, -0.6)
    names = ["" if row.heading or not show else row.label for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for number, row in enumerate(rows):
        if row.heading:
            axes.axhline(number - 0.5, color=_SOFT, linewidth=0.8)
            axes.text(
                0.005,
                number + 0.05,
                _shortened(row.label, width),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontweight="bold",
                bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "lw": 0},
                zorder=4,
            )


# Accuracy: a panel for each figure that can have a limit, then the cache by layer.


def accuracy_svg(figures: Figures) -> str:
    """Draw each figure on the CPU and the emulator against its limit, and the cache by layer."""
    with _styled():
        points = _accuracy_points(figures)
        rows = [point.row for point in points]
        contexts = list(dict.fromkeys((key.model, key.context) for key in figures.evaluations))
        lines = max(len([*_cache_lines(figures, key)]) for key in figures.evaluations)
        recipes = len({key.recipe for key in figures.evaluations})
        legend = _LINE * -(-lines * recipes // _LEGEND_COLUMNS)
        heights = [2 * (_LINE * len(rows) + 0.75) + 0.45, *(2.9 + legend for _ in contexts)]
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_measures(parts[0], points)
        for part, (model, context) in zip(parts[1:], contexts, strict=True):
            _draw_cache(part, figures, model, context)
        return _svg(figure)


@dataclass(frozen=True)
class _Point:
    """A row with the figures of a place, "cpu" or "emulator"; none for a heading."""

    row: _Row
    colour: str
    where: str = ""
    figures: Mapping[str, Any] | None = None
    checks: Sequence[Mapping[str, Any]] = ()

    def check(self, figure: str) -> Mapping[str, Any] | None:
        """Return the verdict on a figure at this place."""
        for check in self.checks:
            if check["figure"] == figure and check["where"] == self.where:
                return check
        return None


def _recipe_colours(figures: Figures) -> dict[str, str]:
    """Give each recipe a colour; past the last one they begin again."""
    recipes = dict.fromkeys(key.recipe for key in figures.evaluations)
    return dict(zip(recipes, cycle(_RECIPE_COLOURS), strict=False))


def _accuracy_points(figures: Figures) -> list[_Point]:
    points = []
    colours = _recipe_colours(figures)
    for group, (key, evaluation) in enumerate(figures.evaluations.items()):
        binaries, colour = figures.binaries_of(key), colours[key.recipe]
        points.append(_Point(_Row(figures.title(key), group, heading=True), colour))
        checks = binaries[0].verdict["checks"] if binaries else ()
        points.append(_Point(_Row("CPU, all text", group), colour, "cpu", evaluation, checks))
        for binary in binaries:
            row = _Row(f"emulator, {figures.part(binary.soc)}", group)
            verdict = binary.verdict
            points.append(_Point(row, colour, "emulator", verdict["emulator"], verdict["checks"]))
    return points


def _draw_measures(part: SubFigure, points: Sequence[_Point]) -> None:
    part.suptitle("How much of the model survives", fontsize=12, fontweight="bold")
    grid = part.subplots(2, 2)
    for number, (axes, measure) in enumerate(zip(grid.flat, MEASURES, strict=True)):
        _label_rows(axes, [point.row for point in points], 50, show=number % 2 == 0)
        _draw_measure(axes, measure, points)
    part.legend(
        handles=[
            _key("s", _SOFT, "CPU, all held-out text"),
            _key("o", _SOFT, "emulator, a part of it"),
            Patch(facecolor=_BAD_SHADE, edgecolor=_BLACK, label="beyond the limit"),
            _key("X", _BAD, "misses the limit"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )


def _key(marker: str, colour: str, label: str) -> Line2D:
    """Return an entry of a legend."""
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=7, label=label)


def _draw_measure(axes: Axes, measure: Measure, points: Sequence[_Point]) -> None:
    scale = _SCALES[measure.name]
    better = "lower" if measure.lower_is_better else "higher"
    axes.set_title(f"{measure.title} ({better} is better)")
    found, limits = [], {}
    for number, point in enumerate(points):
        if point.figures is None:
            continue
        value = scale.place(point.figures[measure.name])
        found.append(value)
        check = point.check(measure.name)
        if check:
            limits[number] = scale.place(check["limit"])
        missed = check is not None and not check["passed"]
        marker = "s" if point.where == "cpu" else "o"
        axes.plot(
            [value],
            [number],
            marker="X" if missed else marker,
            color=_BAD if missed else point.colour,
            markersize=8 if missed else 6.5,
            markeredgecolor="white" if missed else _BLACK,
            markeredgewidth=0.5,
            linestyle="",
            clip_on=False,
            zorder=3,
        )
        text = axes.annotate(
            measure.write(point.figures[measure.name]),
            (value, number),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=_BAD if missed else _BLACK,
            fontweight="bold" if missed else "normal",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.75, "lw": 0},
            zorder=4,
        )
        text.set_in_layout(False)
    low, high = scale.span([*found, *limits.values()])
    axes.set_xlim(low, high)
    for number, limit in limits.items():
        edge = high if measure.lower_is_better else low
        axes.fill_betweenx(
            [number - 0.5, number + 0.5], limit, edge, color=_BAD_SHADE, linewidth=0, zorder=0
        )
        axes.plot([limit, limit], [number - 0.5, number + 0.5], color=_BLACK, lw=1.6, zorder=2)
    scale.ticks(axes)
    axes.grid(axis="x", color=_GRID, linewidth=0.7)


@dataclass(frozen=True)
class _Scale:
    """How the values of a measure lie on an axis, what it spans, and how its ticks read."""

    place: Callable[[float], float]
    span: Callable[[Sequence[float]], tuple[float, float]]
    ticks: Callable[[Axes], None]


def _orders(value: float) -> float:
    """Return the power of ten of a value that is no less than 0; 1e-9 stands for all below it."""
    return float(np.log10(max(value, 1e-9)))


def nines(value: float) -> float:
    """Return how many nines a cosine has: 2 for 0.99, 3 for 0.999; 7 for all above."""
    return -float(np.log10(max(1 - value, 10**-_NINES)))


def _whole_span(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.floor(min(values) - 0.15), np.ceil(max(values) + 0.15)
    return float(low), float(high + 0.25 * (high - low))  # room for the last text


def _linear_span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(*values, 0.0), max(*values, 0.0)
    pad = max(high - low, 1e-3)
    return low - 0.08 * pad, high + 0.35 * pad


def _share_span(values: Sequence[float]) -> tuple[float, float]:
    pad = max(1 - min(values), 1e-3)
    return min(values) - 0.15 * pad, 1 + 0.3 * pad


def _order_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"$10^{{{x:.0f}}}$"))
    axes.set_xlabel("nats a token")


def _nine_label(count: float, _: object = None) -> str:
    """Return a cosine with whole nines as text."""
    if not 0 <= count <= _NINES:
        return ""
    return f"{1 - 10.0**-count:.{round(count)}f}"


def _nine_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(_nine_label))
    axes.set_xlabel("cosine")


def _share_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _percent(x) if x <= 1 else ""))
    axes.set_xlabel("of the tokens")


def _increase_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _percent(x)))
    axes.set_xlabel("more than the original's")


def _percent(value: float) -> str:
    return f"{100 * value:.6g} %"


def _same(value: float) -> float:
    return value


def _capped(increase: float) -> float:
    """Return the place of an increase: a ruined model must not squeeze the others."""
    return min(increase, _LARGEST_INCREASE)


_SCALES: Mapping[str, _Scale] = {
    "kl_divergence": _Scale(_orders, _whole_span, _order_ticks),
    "top1_agreement": _Scale(_same, _share_span, _share_ticks),
    "perplexity_increase": _Scale(_capped, _linear_span, _increase_ticks),
    "logits_cosine": _Scale(nines, _whole_span, _nine_ticks),
}


def _draw_cache(part: SubFigure, figures: Figures, model: str, context: int) -> None:
    part.suptitle(
        f"KV cache by layer: {model}, context of {context} tokens", fontsize=12, fontweight="bold"
    )
    keys = [key for key in figures.evaluations if (key.model, key.context) == (model, context)]
    colours = _recipe_colours(figures)
    handles = []
    grid = part.subplots(1, 2, sharey=True)
    lowest, highest = _NINES, 0.0
    for axes, kind in zip(grid, ("key", "value"), strict=True):
        axes.set_title(f"{kind}s (higher is better)")
        for key in keys:
            for label, marker, line, cosines in _cache_lines(figures, key):
                layers = [nines(cosines[name]) for name in _layers(cosines, kind)]
                lowest, highest = min(lowest, *layers), max(highest, *layers)
                (drawn,) = axes.plot(
                    range(len(layers)),
                    layers,
                    color=colours[key.recipe],
                    marker=marker,
                    linestyle=line,
                    markersize=4,
                    linewidth=1.3,
                    label=label,
                )
                if kind == "key":
                    handles.append(drawn)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color=_GRID, linewidth=0.7)
    grid[0].set_ylim(np.floor(lowest), np.ceil(highest) + 0.15)
    grid[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    grid[0].yaxis.set_major_formatter(FuncFormatter(_nine_label))
    grid[0].set_ylabel("cosine with the original")
    columns = min(_LEGEND_COLUMNS, len(handles))
    part.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def _cache_lines(
    figures: Figures, key: RecipeKey
) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Yield label, marker, line style and cosines: the CPU's, then those of each chip."""
    yield f"{key.recipe}, CPU", "s", "--", figures.evaluations[key]["kv_cosine"]
    for binary, marker in zip(figures.binaries_of(key), cycle(_CHIP_MARKERS), strict=False):
        label = f"{key.recipe}, emulator, {figures.part(binary.soc)}"
        yield label, marker, "-", binary.verdict["emulator"]["kv_cosine"]


def _layers(cosines: Mapping[str, float], kind: str) -> list[str]:
    """Return the names of the tensors of one kind by layer."""
    prefix = f"past_{kind}_"
    names = [name for name in cosines if name.startswith(prefix)]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))


# Size: the binaries against the ideal.


def size_svg(figures: Figures) -> str:
    """Draw context.bin and the single binaries of each chip against the ideal."""
    with _styled():
        rows = list(_size_rows(figures))
        height = _LINE * len(rows) * 1.15 + 1.6
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title("Size on disk against the ideal", fontsize=12)
        _label_rows(axes, [row.row for row in rows], 100)
        for number, row in enumerate(rows):
            left = 0.0
            for width, face, hatch in row.parts:
                axes.barh(
                    number,
                    width / 1e6,
                    left=left / 1e6,
                    height=0.72,
                    color=face,
                    hatch=hatch,
                    edgecolor=_BLACK,
                    linewidth=0.5,
                )
                left += width
            if row.text:
                axes.annotate(
                    row.text,
                    (left / 1e6, number),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
        _mark_ideals(axes, rows)
        longest = max(sum(part[0] for part in row.parts) for row in rows)
        axes.set_xlim(0, 1.7 * longest / 1e6)
        axes.xaxis.set_major_locator(FixedLocator(MaxNLocator(6).tick_values(0, longest / 1e6)))
        axes.set_xlabel("MB (millions of bytes)")
        axes.grid(axis="x", color=_GRID, linewidth=0.7)
        figure.legend(
            handles=[
                Patch(facecolor=face, edgecolor=_BLACK, hatch=hatch, label=label)
                for face, hatch, label in (
                    (_BLUE, "", "context.bin, for the phone"),
                    (_SKY, "", "one graph alone"),
                    (_MATRICES, "", "ideal: matrices"),
                    (_EMBEDDING, "", "ideal: embedding"),
                    ("white", "////", "ideal: tied head, stored again"),
                )
            ],
            loc="outside lower center",
            ncols=3,
            frameon=False,
        )
        return _svg(figure)


@dataclass(frozen=True)
class _Bar:
    """A row of the size plot: parts of a bar as (bytes, colour, hatch), and its text."""

    row: _Row
    parts: Sequence[tuple[float, str, str]] = ()
    text: str = ""
    ideal: float | None = None


def _size_rows(figures: Figures) -> Iterator[_Bar]:
    for group, key in enumerate(figures.evaluations):
        ideal, bits = figures.ideal(key), figures.weight_bits[key.recipe]
        yield _Bar(_Row(figures.title(key), group, heading=True))
        parts = [(ideal.matrices, _MATRICES, ""), (ideal.embedding, _EMBEDDING, "")]
        text = size(ideal.total)
        if ideal.head_copy:
            parts.append((ideal.head_copy, "white", "////"))
            text += f", {size(ideal.total + ideal.head_copy)} with the tied head"
        name = f"ideal, {bits} bits" + (", embedding 16" if bits != 16 else "")
        yield _Bar(_Row(name, group), parts, text, ideal.total)
        for binary in figures.binaries_of(key):
            manifest, part = binary.manifest, figures.part(binary.soc)
            count, ratio = manifest["binary"]["bytes"], manifest["ratio_to_decode"]
            text = f"{size(count)} = {count / ideal.total:.2f} × ideal"
            if ideal.head_copy:
                text += f", {count / (ideal.total + ideal.head_copy):.2f} × with the tied head"
            yield _Bar(_Row(f"context.bin, {part}", group), [(count, _BLUE, "")], text)
            for graph in ("prefill", "decode"):
                count = manifest["proven"][graph]["bytes"]
                text = size(count)
                if graph == "decode":
                    more = "larger" if ratio >= 1 else "smaller"
                    text += f"; context.bin is {100 * abs(ratio - 1):.1f} % {more}"
                yield _Bar(_Row(f"{graph}.bin, {part}", group), [(count, _SKY, "")], text)


def _mark_ideals(axes: Axes, rows: Sequence[_Bar]) -> None:
    """Draw a line down from the ideal over the bars of its group."""
    for number, row in enumerate(rows):
        if row.ideal is not None:
            last = max(n for n, other in enumerate(rows) if other.row.group == row.row.group)
            places = [row.ideal / 1e6] * 2
            axes.plot(places, [number - 0.36, last + 0.42], color=_BLACK, lw=1.1, ls=":", zorder=3)


# Cost: what the build took.


def cost_svg(figures: Figures) -> str:
    """Draw time and peak memory of each rule, the longest first."""
    with _styled():
        costs = figures.costs
        height = _LINE * 1.15 * max(len(costs), 1) + 1.5
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        total = sum(cost.seconds for cost in costs)
        figure.suptitle(
            f"Cost of the build: {plural(sum(cost.jobs for cost in costs), 'job')}, "
            f"{duration(total)} when all are added up",
            fontsize=12,
            fontweight="bold",
        )
        time_axes, memory_axes = figure.subplots(1, 2, sharey=True)
        rows = [_Row(_cost_label(cost), number) for number, cost in enumerate(costs)]
        _label_rows(time_axes, rows, 0)
        _draw_bars(time_axes, [cost.seconds for cost in costs], _BLUE, duration)
        time_axes.set_title("Time, all jobs of the rule")
        _time_ticks(time_axes)
        memory_axes.tick_params(axis="y", length=0)
        memory_axes.spines["left"].set_visible(False)
        peaks = [None if cost.peak is None else cost.peak / 1e9 for cost in costs]
        _draw_bars(memory_axes, peaks, _GREEN, lambda value: f"{value:.2f} GB")
        memory_axes.set_title("Peak memory, the largest job")
        memory_axes.set_xlabel("GB (billions of bytes)")
        return _svg(figure)


def _cost_label(cost: RuleCost) -> str:
    return f"{cost.rule} × {cost.jobs}" if cost.jobs > 1 else cost.rule


def _draw_bars(
    axes: Axes, values: Sequence[float | None], colour: str, write: Callable[[float], str]
) -> None:
    axes.barh(
        range(len(values)),
        [value or 0.0 for value in values],
        height=0.72,
        color=colour,
        edgecolor=_BLACK,
        linewidth=0.5,
    )
    for number, value in enumerate(values):
        axes.annotate(
            "not measured" if value is None else write(value),
            (value or 0.0, number),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_xlim(0, 1.3 * max((value or 0.0 for value in values), default=1.0) or 1.0)
    axes.grid(axis="x", color=_GRID, linewidth=0.7)


def _time_ticks(axes: Axes) -> None:
    """Write minutes where the axis spans several."""
    _, end = axes.get_xlim()
    minutes = end > 180
    unit = 60.0 if minutes else 1.0
    places = MaxNLocator(nbins=6).tick_values(0, end / unit)
    axes.xaxis.set_major_locator(FixedLocator([place * unit for place in places]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / unit:g}"))
    axes.set_xlim(0, end)
    axes.set_xlabel("minutes" if minutes else "seconds")
