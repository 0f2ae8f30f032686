"""The figures of a build, read from the files that its stages wrote, for the report's pages.

The files say nothing about where they belong: model, context, recipe and chip are the folders that
they lie in, results/{model}/c{ctx}/{recipe}/{soc}/.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, require_file

_GRAPHS = ("prefill", "decode")
# The embedding table is looked up and not multiplied: every recipe keeps it in 16 bits.
_EMBEDDING_BITS = 16


@dataclass(frozen=True, order=True)
class RecipeKey:
    """A model in one context (tokens) and one recipe."""

    model: str
    context: int
    recipe: str


@dataclass(frozen=True)
class FigureFiles:
    """The files of a build that have its figures, where the workflow puts them under results/.

    By binary: `verdicts` (verify.json), `chats` (genie.json), `contexts` (context.json); by recipe:
    `evaluations`; by model and context: `checks` (onnx_check.json); by model: `summaries`
    (checkpoint.json). `benchmarks` is Snakemake's folder of them.
    """

    verdicts: Sequence[Path]
    chats: Sequence[Path]
    contexts: Sequence[Path]
    evaluations: Sequence[Path]
    checks: Sequence[Path]
    summaries: Sequence[Path]
    benchmarks: Path


@dataclass(frozen=True)
class Binary:
    """What was made for one chip (`soc`): its verify.json, genie.json and context.json."""

    key: RecipeKey
    soc: str
    verdict: Mapping[str, Any]
    chat: Mapping[str, Any]
    manifest: Mapping[str, Any]

    @property
    def accepted(self) -> bool:
        """Whether every limit of the recipe is kept and Genie answers as the CPU does."""
        return bool(self.verdict["accepted"])

    def check(self, figure: str, where: str) -> Mapping[str, Any] | None:
        """Return the verdict on a figure on the "emulator" or the "cpu"; None without a limit."""
        for check in self.verdict["checks"]:
            if (check["figure"], check["where"]) == (figure, where):
                return dict(check)
        return None


@dataclass(frozen=True)
class Ideal:
    """Bytes of a model's weights when each takes just the bits that its recipe gives it.

    `matrices` are all weights but the embedding table, which is `embedding`. `head_copy` is what a
    head that is tied to the embedding takes in the form that a matrix has; 0 for another.
    """

    matrices: float
    embedding: float
    head_copy: float

    @property
    def total(self) -> float:
        """Every weight of the checkpoint once."""
        return self.matrices + self.embedding


@dataclass(frozen=True)
class RuleCost:
    """What the jobs of one rule took: seconds in all, and the largest peak memory in bytes.

    The peak is None when the jobs were too short for Snakemake to measure it.
    """

    rule: str
    jobs: int
    seconds: float
    peak: float | None


@dataclass(frozen=True)
class Figures:
    """All that the report shows, in the order of the configuration.

    `evaluations` are evaluation.json by recipe, `checks` onnx_check.json by model and context,
    `summaries` checkpoint.json by model. `weight_bits` belong to recipes, `chips` are the names
    that people know the chips by.
    """

    binaries: Sequence[Binary]
    evaluations: Mapping[RecipeKey, Mapping[str, Any]]
    checks: Mapping[tuple[str, int], Mapping[str, Any]]
    summaries: Mapping[str, Mapping[str, Any]]
    weight_bits: Mapping[str, int]
    chips: Mapping[str, str]
    costs: Sequence[RuleCost]

    def binaries_of(self, key: RecipeKey) -> list[Binary]:
        """Return the binaries of one recipe, a chip each."""
        return [binary for binary in self.binaries if binary.key == key]

    def chip(self, soc: str) -> str:
        """Return the name that people know a chip by."""
        return self.chips.get(soc, soc)

    def part(self, soc: str) -> str:
        """Return the short name of a chip."""
        return soc.upper()

    def ideal(self, key: RecipeKey) -> Ideal:
        """Return the ideal size of a model's weights in a recipe."""
        return ideal_size(self.summaries[key.model], self.weight_bits[key.recipe])

    def title(self, key: RecipeKey) -> str:
        """Name a recipe by what tells it from the others in this build."""
        parts = []
        if len({other.model for other in self.evaluations}) > 1:
            parts.append(key.model)
        if len({other.context for other in self.evaluations}) > 1:
            parts.append(f"{key.context} tokens")
        return ", ".join([*parts, key.recipe])


def ideal_size(summary: Mapping[str, Any], weight_bits: int) -> Ideal:
    """Return the ideal size for the model that `summary` (checkpoint.json) describes.

    Ideal = (weights - embedding) x `weight_bits` / 8 + embedding x 16 / 8 bytes, where embedding is
    vocabulary x hidden size. A few thousandths (norms, biases) are counted like the matrices.
    """
    spec = summary["spec"]
    embedding = spec["vocab_size"] * spec["hidden_size"]
    return Ideal(
        matrices=(summary["parameters"] - embedding) * weight_bits / 8,
        embedding=embedding * _EMBEDDING_BITS / 8,
        head_copy=embedding * weight_bits / 8 if spec["tied_embeddings"] else 0.0,
    )


def read_figures(
    files: FigureFiles, weight_bits: Mapping[str, int], chips: Mapping[str, str]
) -> Figures:
    """Read all figures; `weight_bits` and `chips` are those of `Figures`.

    Raises SnapbakeError for a file that is missing or broken, and for a binary of which not all
    files were given.
    """
    kinds = {
        "verify.json": {_target(path.parent.parent): path for path in files.verdicts},
        "genie.json": {_target(path.parent.parent): path for path in files.chats},
        "context.json": {_target(path.parent): path for path in files.contexts},
    }
    # In the order in which they were given.
    targets = list(dict.fromkeys(target for paths in kinds.values() for target in paths))
    for key, soc in targets:
        for name, paths in kinds.items():
            if (key, soc) not in paths:
                raise SnapbakeError(
                    f"{name} of {key.model}, context {key.context}, {key.recipe}, {soc} was not "
                    f"given; give {', '.join(kinds)} of every binary"
                )
    return Figures(
        binaries=[
            Binary(*target, *(read_json(paths[target]) for paths in kinds.values()))
            for target in targets
        ],
        evaluations={_recipe(path.parent): read_json(path) for path in files.evaluations},
        checks={_context(path.parent): read_json(path) for path in files.checks},
        summaries={path.parent.name: read_json(path) for path in files.summaries},
        weight_bits=weight_bits,
        chips=chips,
        costs=read_costs(files.benchmarks, targets),
    )


def _context(folder: Path) -> tuple[str, int]:
    """Return model and context of results/{model}/c{ctx}."""
    number = folder.name.removeprefix("c")
    if not folder.name.startswith("c") or not number.isdecimal():
        raise SnapbakeError(
            f"{folder} is not a folder of results/, as in results/<model>/c512; give the files "
            "where the workflow puts them"
        )
    return folder.parent.name, int(number)


def _recipe(folder: Path) -> RecipeKey:
    return RecipeKey(*_context(folder.parent), folder.name)


def _target(folder: Path) -> tuple[RecipeKey, str]:
    return _recipe(folder.parent), folder.name


def read_costs(folder: Path, targets: Iterable[tuple[RecipeKey, str]]) -> list[RuleCost]:
    """Add up Snakemake's benchmarks by rule, the longest first, of these targets alone.

    Files are {rule}/{model}[/c{ctx}[/{recipe}[/{soc}]]][/{graph}].tsv in `folder`. Others, left
    from what was built earlier, are not counted.
    """
    known = set()
    for key, soc in targets:
        parts = (key.model, f"c{key.context}", key.recipe, soc)
        for length in range(1, len(parts) + 1):
            known.add(parts[:length])
            known.update((*parts[:length], graph) for graph in _GRAPHS)
    costs = []
    for rule in sorted(path for path in folder.glob("*") if path.is_dir()):
        rows = [
            row
            for path in sorted(rule.rglob("*.tsv"))
            if path.relative_to(rule).with_suffix("").parts in known
            for row in _read_benchmark(path)
        ]
        peaks = [peak for _, peak in rows if peak is not None]
        if rows:
            seconds = sum(seconds for seconds, _ in rows)
            costs.append(RuleCost(rule.name, len(rows), seconds, max(peaks, default=None)))
    return sorted(costs, key=lambda cost: -cost.seconds)


def _read_benchmark(path: Path) -> list[tuple[float, float | None]]:
    """Return seconds and peak memory in bytes of every run; the peak is None when not measured.

    Snakemake's MB are MiB.
    """
    require_file(path)
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return [
                (float(row["s"]), _bytes(row["max_rss"]))
                for row in csv.DictReader(stream, delimiter="\t")
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise SnapbakeError(
            f"{path} is not a benchmark of Snakemake with the columns s and max_rss; delete it"
        ) from error


def _bytes(text: str) -> float | None:
    return None if text in ("NA", "-") else float(text) * (1 << 20)
