"""The files that the report reads, as the stages write them, of builds that nobody built.

Logits and caches are random and a recipe adds noise to them; all figures are then made by the
modules that make them in a build.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genie_answers import genie_answers
from snapbake.families import read_spec
from snapbake.files import write_json
from snapbake.metrics import CosineSums, score_tokens, summarize
from snapbake.report import draw_report
from snapbake.report_figures import FigureFiles, Figures, read_figures
from snapbake.subset import Answer, Reading, Subset, save_subset
from snapbake.verdict import verify_target

VOCABULARY, LAYERS, TOKENS = 64, 4, 40
NOISE = {"fp16": 1e-4, "w8a16": 0.04, "w4a16": 0.4, "w8a8": 0.2, "broken": 50.0}
BITS = {"fp16": 16, "w8a16": 8, "w4a16": 4, "w8a8": 8, "broken": 8}
LIMITS = {"kl_divergence": 0.03, "top1_agreement": 0.93, "perplexity_increase": 0.04}


@dataclass
class Built:
    """A build's results/ and benchmarks/ in `folder`, and the arguments of draw_report.py.

    `answer` is what Genie's answer has of its own (see `genie_answers`).
    """

    folder: Path
    models: Sequence[str]
    contexts: Sequence[int] = (512,)
    recipes: Sequence[str] = ("fp16", "w8a16")
    socs: Sequence[str] = ("sm8650",)
    tied: bool = True
    answer: Mapping[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        results = self.folder / "results"
        self.arguments = {
            "verdicts": [],
            "chats": [],
            "contexts": [],
            "evaluations": [],
            "checks": [],
            "summaries": [],
            "benchmarks": self.folder / "benchmarks",
            "weight_bits": {recipe: BITS[recipe] for recipe in self.recipes},
            "chips": {soc: f"{soc.upper()} (a phone's chip, v75)" for soc in self.socs},
        }
        for model in self.models:
            self._add("summaries", results / model / "checkpoint.json", checkpoint(self.tied))
            self._benchmark("prepare_checkpoint", model, 12.5, "900.25")
            for context in self.contexts:
                self._add_context(results / model / f"c{context}", model, context)

    def figures(self) -> Figures:
        """Read the figures of all files."""
        return read_figures(*self._read_arguments())

    def draw(self, output: Path) -> Path:
        """Draw the report into a folder and return it."""
        draw_report(*self._read_arguments(), output)
        return output

    def _read_arguments(self) -> tuple[FigureFiles, dict[str, int], dict[str, str]]:
        files = {
            name: value
            for name, value in self.arguments.items()
            if name not in ("weight_bits", "chips")
        }
        return FigureFiles(**files), self.arguments["weight_bits"], self.arguments["chips"]

    def _add_context(self, folder: Path, model: str, context: int) -> None:
        self._add("checks", folder / "onnx_check.json", ONNX_CHECK)
        self._benchmark("select_records", f"{model}/c{context}", 0.4, "NA")
        for recipe in self.recipes:
            place = f"{model}/c{context}/{recipe}"
            evaluation = evaluate(NOISE[recipe])
            self._add("evaluations", folder / recipe / "evaluation.json", evaluation)
            self._benchmark("evaluate_recipe", place, 200.0, "2000.00")
            for soc in self.socs:
                self._add("contexts", folder / recipe / soc / "context.json", manifest(recipe))
                chat = folder / recipe / soc / "emulator" / "genie.json"
                self._add("chats", chat, genie_answers(**self.answer))
                self.arguments["verdicts"].append(verify(folder / recipe, soc, NOISE[recipe]))
                for graph in ("prefill", "decode"):
                    self._benchmark("compile_graph", f"{place}/{soc}/{graph}", 40.0, "3000.00")

    def _add(self, argument: str, path: Path, content: Any) -> None:
        write_json(path, content)
        self.arguments[argument].append(path)

    def _benchmark(self, rule: str, place: str, seconds: float, peak: str) -> None:
        path = self.folder / "benchmarks" / rule / f"{place}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
            f"{seconds}\t0:00:00\t{peak}\t1\t1\t1\t1\t1\t1\t1\n"
        )


def checkpoint(tied: bool) -> dict[str, Any]:
    """Return a checkpoint.json: 10 million weights, of which 2 million are the embedding."""
    spec = read_spec(
        {
            "model_type": "llama",
            "vocab_size": 40,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": tied,
        }
    )
    return {
        "architecture": spec.architecture,
        "parameters": 10_000_000,
        "source": {"kind": "folder", "location": "models/<mine> & yours"},
        "spec": asdict(spec) | {"vocab_size": 20_000, "hidden_size": 100},
    }


ONNX_CHECK = {
    "limit": 0.001,
    "stages": {
        "adapted": {
            "decode": {"logits": {"fraction": 2e-6}, "cache": {"fraction": 3e-6}},
            "prefill": {"logits": {"fraction": 1e-6}, "cache": {"fraction": 4e-6}},
        }
    },
}


def manifest(recipe: str) -> dict[str, Any]:
    """Return the part of a context.json that the report reads."""
    count = round(10_000_000 * BITS[recipe] / 8 * 1.1)
    return {
        "binary": {"path": "context.bin", "bytes": round(1.05 * count), "sha256": "ab" * 32},
        "proven": {
            graph: {"path": f"{graph}.bin", "bytes": count, "sha256": "cd" * 32}
            for graph in ("prefill", "decode")
        },
        "qairt_build": "2.51.0.1",
        "ratio_to_decode": 1.05,
    }


def text(seed: int) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return token ids, logits [TOKENS, V] and a cache [LAYERS, 2, 1, TOKENS, 8]."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (TOKENS, VOCABULARY)).astype(np.float32)
    ids = [0, *(int(row.argmax()) for row in logits[:-1])]
    return ids, logits, random.normal(0, 1, (LAYERS, 2, 1, TOKENS, 8)).astype(np.float32)


def noisy(values: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Return what a recipe would make of the values."""
    random = np.random.default_rng(1000 + seed)
    return (values + random.normal(0, noise, values.shape)).astype(np.float32)


def evaluate(noise: float) -> dict[str, Any]:
    """Return an evaluation.json over two texts."""
    scores, cosines = [], CosineSums()
    for record in (7, 8):
        ids, logits, cache = text(record)
        scores.append((record, score_tokens(logits, noisy(logits, noise, record), ids)))
        for layer in range(LAYERS):
            for index, kind in enumerate(("key", "value")):
                values = cache[layer, index]
                cosines.add(f"past_{kind}_{layer}", values, noisy(values, noise, layer))
    answers = [
        {
            "record": 9,
            "prompt": "Which is <larger>, 1 & 2?\nSay why.",
            "expected": "Two.",
            "float": "Two is larger because it comes later.",
            "recipe": "Two is larger since it comes later.",
            "tokens": 8,
            "agreeing_tokens": 3,
            "margin_at_difference": 0.25,
        },
        {
            "record": 10,
            "prompt": "Say hello.",
            "expected": "Hello.",
            "float": "Hello!",
            "recipe": "Hello!",
            "tokens": 2,
            "agreeing_tokens": 2,
            "margin_at_difference": None,
        },
    ]
    return {**summarize(scores), "kv_cosine": cosines.result(), "answers": answers}


def verify(folder: Path, soc: str, noise: float) -> Path:
    """Judge a run on the emulator and return the path of its verify.json."""
    ids, logits, cache = text(7)
    reading = Reading(7, tuple(ids), logits, cache)
    answer = Answer(9, (1, 2), 16, tuple(range(16)), tuple(0.1 * n for n in range(16)))
    on_cpu = np.array([0, 1, 2, 3, *range(20, 32)])
    emulator = folder / soc / "emulator"
    save_subset(folder / "reference.npz", Subset((reading,), (answer,), (0,)))
    write_json(emulator / "run.json", {"seconds": 95.2, "weights_sha256": None})
    np.savez(folder / "cpu.npz", reading_0_logits=noisy(logits, noise, 7), answer_ids=on_cpu)
    np.savez(
        emulator / "outputs.npz",
        reading_0_logits=noisy(logits, 1.1 * noise, 70),
        reading_0_cache=noisy(cache, noise, 71),
        answer_ids=on_cpu,
    )
    limits = {"logits_cosine": 0.9999} if noise < 1e-3 else LIMITS
    verify_target(
        emulator / "run.json",
        emulator / "outputs.npz",
        folder / "evaluation.json",
        folder / "cpu.npz",
        folder / "reference.npz",
        emulator / "genie.json",
        limits,
        emulator / "verify.json",
    )
    return emulator / "verify.json"
