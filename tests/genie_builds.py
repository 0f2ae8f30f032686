"""A tiny model built to the end for the tests of Genie and of the bundle."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contract_graphs import CHUNK, CONTEXT, graphs_of, make_contract, quantize_tiny, token_ids
from snapbake.bundle import BundleParts, make_bundle
from snapbake.chat_preparation import prepare_chat
from snapbake.context_binary import compile_graph
from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Decoder, GraphPair, read_pair
from snapbake.emulator_run import EmulatorRunner
from snapbake.families import read_spec
from snapbake.files import read_json, write_json
from snapbake.fp16 import convert_fp16
from snapbake.genie import Genie
from snapbake.genie_gate import open_genie, run_genie
from snapbake.genie_verdict import judge_genie, near_tie_limit
from snapbake.htp_target import HtpTarget
from snapbake.prompt_template import PromptTemplate, read_prompt_template
from snapbake.weight_sharing import share_weights
from tiny_models import make_tiny_model

ROOT = Path(__file__).resolve().parents[1]
TARGET = HtpTarget(soc_model=57, arch=75, vtcm_mb=8)
QUESTIONS = ("Naïve café in the sea, how long?", "What is the capital of France?")
TOKENS = 6


@dataclass(frozen=True)
class GenieBuild:
    """A tiny model's checkpoint, the folder of a recipe's graphs, and what belongs to a chip."""

    checkpoint: Path
    graphs: Path
    binaries: dict[str, Path]
    template: Path
    prompts: Path
    outputs: Path
    cpu_outputs: Path
    chunk: int
    context: int

    @property
    def pair(self) -> GraphPair:
        """What a decoder has to know."""
        spec = read_spec(read_json(self.checkpoint / "config.json"))
        return read_pair(spec, self.chunk, self.context, self.graphs / "encodings.json")

    @property
    def plain(self) -> PromptTemplate:
        """The prompt template."""
        return read_prompt_template(self.template)

    def cpu(self) -> CpuRunner:
        """The same graphs on the CPU."""
        return CpuRunner(graphs_of(self.graphs), threads=1)

    @contextmanager
    def genie(self, folder: Path) -> Iterator[Genie]:
        """Yield Genie over the binaries; `folder` is for a file of its settings."""
        extensions = folder / "extensions.json"
        extensions.write_text("{}", encoding="utf-8")
        with open_genie(
            self.pair.spec,
            self.context,
            self.plain,
            list(self.binaries.values()),
            self.checkpoint / "tokenizer.json",
            extensions,
        ) as genie:
            yield genie


def make_genie_build(
    folder: Path,
    family: str,
    recipe: str,
    chunk: int = CHUNK,
    context: int = CONTEXT,
    **overrides: Any,
) -> GenieBuild:
    """Make a tiny model of a family in a recipe ("fp16" or "w8a16") and compile it."""
    checkpoint = make_tiny_model(folder / "checkpoint", family, layers=1, **overrides)
    contract = make_contract(checkpoint, folder / "htp", chunk, context)
    graphs = folder / recipe
    if recipe == "fp16":
        convert_fp16(contract["prefill"], contract["decode"], graphs)
    else:
        quantize_tiny(checkpoint, contract, graphs)
    binaries = {}
    for name, path in graphs_of(graphs).items():
        binaries[name] = graphs / f"{name}.bin"
        compile_graph(path, name, TARGET, binaries[name])
    build = GenieBuild(
        checkpoint,
        graphs,
        binaries,
        folder / "template.json",
        folder / "prompts.json",
        folder / "outputs.npz",
        folder / "cpu_outputs.npz",
        chunk,
        context,
    )
    prepare_chat(checkpoint, QUESTIONS, TOKENS, context, chunk, 1, build.template, build.prompts)
    _read_text(build, folder)
    return build


def _read_text(build: GenieBuild, folder: Path) -> None:
    """Let the emulator and the CPU read one chunk, as the verification does."""
    ids = token_ids(build.chunk, seed=9)
    with EmulatorRunner(build.binaries, build.pair.borders, folder / "emulator") as emulator:
        for run, path in ((emulator.run, build.outputs), (build.cpu().run, build.cpu_outputs)):
            (logits,) = Decoder(build.pair, run).prefill(ids)
            np.savez(path, reading_0_logits=logits)


def gate(
    build: GenieBuild, output: Path, prompts: Path | None = None, graphs: Path | None = None
) -> dict:
    """Run the whole Genie gate, write genie.json and return it with the verdict on it."""
    run_genie(
        build.binaries,
        graphs_of(graphs or build.graphs),
        build.checkpoint,
        build.graphs / "encodings.json",
        build.template,
        prompts or build.prompts,
        build.chunk,
        build.context,
        TARGET.soc_model,
        TARGET.arch,
        TOKENS,
        1,
        output,
    )
    answers = read_json(output)
    limit = near_tie_limit(build.outputs, build.cpu_outputs)
    return {**answers, "verdict": judge_genie(answers, limit)}


def make_target(build: GenieBuild, results: Path) -> Path:
    """Lay a build out as the rules do, share the weights and make its bundle.

    Returns results/tiny/c{context}/fp16/sm8650, with the binaries, context.bin and bundle/ in it.
    """
    model = results / "tiny"
    recipe = model / f"c{build.context}" / build.graphs.name
    target = recipe / "sm8650"
    (target / "emulator").mkdir(parents=True)
    shutil.copytree(build.checkpoint, model / "checkpoint")
    (model / "chat").mkdir()
    shutil.copy(build.template, model / "chat" / "prompt_template.json")
    for path in build.graphs.glob("*.*"):
        shutil.copy(path, target if path.suffix == ".bin" else recipe)
    calibration = model / f"c{build.context}" / "calibration" / "manifest.json"
    write_json(calibration, {"seed": 1, "sha256": "00", "weights_sha256": None})
    write_json(
        model / "checkpoint.json",
        {
            "parameters": 1234,
            "sha256": None,  # no prepare_checkpoint wrote it into the weights
            "licence": "mit",
            "source": {"kind": "folder", "location": "path/to/exported"},
        },
    )
    share_weights(
        recipe / "prefill.onnx",
        recipe / "decode.onnx",
        [target / "prefill.bin", target / "decode.bin"],
        "sm8650",
        TARGET,
        [calibration],
        target / "context.bin",
        target / "context.json",
    )
    figures = dict.fromkeys(
        (
            "kl_divergence",
            "top1_agreement",
            "logits_cosine",
            "perplexity",
            "perplexity_float",
            "perplexity_increase",
        ),
        0.5,
    )
    write_json(
        target / "emulator" / "verify.json",
        {
            "emulator": {**figures, "tokens": 9},
            "cpu": {**figures, "tokens": 9},
            "checks": [],
            "genie": {},
            "weights_sha256": None,
        },
    )
    answer = {"text": "It | is\nso."}
    write_json(
        target / "emulator" / "genie.json",
        {"prompts": [{"question": "What's it?", "genie": answer, "float": answer}]},
    )
    bundle_target(target)
    return target


def bundle_target(
    target: Path, android: Path = ROOT / "android", programs: Path | None = None
) -> None:
    """Make the bundle of a target folder, with other sources or with programs where asked for."""
    model = target.parents[2]
    make_bundle(
        BundleParts(
            target / "context.bin",
            target / "context.json",
            target.parent / "encodings.json",
            model / "checkpoint",
            model / "checkpoint.json",
            model / "chat" / "prompt_template.json",
            target.parents[1] / "calibration" / "manifest.json",
            target / "emulator" / "verify.json",
            target / "emulator" / "genie.json",
            ROOT / "requirements.txt",
            android,
            programs,
        ),
        "tiny",
        target.parent.name,
        CONTEXT,
        CHUNK,
        "SM8650",
        "SM8650 (Snapdragon 8 Gen 3, v75)",
        {"seed": 1},
        ROOT / "bundle" / "README.md",
        ROOT / "bundle" / "run_on_phone.sh",
        target / "bundle",
    )
