"""Every graph on the way against PyTorch, on real prompts, with the KV cache handed on.

PyTorch reads a prompt in one go; the graphs read it as an application would: in prefill chunks, the
last one not full, then token by token, each step taking the cache that the steps before it wrote.
At every position the logits and the new rows of the cache must agree with PyTorch's.
"""

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

from snapbake.cpu_sessions import cpu_options
from snapbake.decoding import Border, Decoder, Feeds, GraphPair, Run
from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, read_spec
from snapbake.files import read_json, write_json
from snapbake.freeze import frozen_sizes
from snapbake.onnx_files import load_graph, require_external_data
from snapbake.optimum_decoding import OptimumDecoder
from snapbake.safetensors_file import stored_identity
from snapbake.token_records import TokenRecord, read_token_records
from snapbake.torch_reference import Reference, torch_references

GraphName = Literal["prefill", "decode"]
FloatArray = NDArray[np.float32]

LIMIT = 1e-3  # of the range (largest - smallest) of PyTorch's values
DECODE_STEPS = 3
# Masks exactly, its exponential being zero in fp32; recipes choose theirs for precision.
_MASK_VALUE = -10000.0


@dataclass(frozen=True)
class Stage:
    """The graphs of one stage. `prefill` and `decode` are one file for the dynamic export."""

    name: Literal["exported", "static", "simplified", "adapted"]
    prefill: Path
    decode: Path


@dataclass(frozen=True)
class Step:
    """One run of a graph: `count` new tokens behind `past` valid ones."""

    graph: GraphName
    past: int
    count: int


@dataclass(frozen=True)
class Prompt:
    """Real text to compare on: the tokens of one record, or of several joined."""

    records: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """The largest difference of one kind and where it is.

    `fraction` is the difference divided by the range of PyTorch's values, infinite where a value is
    not a number. `index` says what lies at the place: {"token": vocabulary id} in the logits,
    {"head", "channel"} in the cache.
    """

    fraction: float
    difference: float
    tensor: str
    records: tuple[int, ...]
    position: int
    index: Mapping[str, int]

    def place(self) -> str:
        """Return the place as words."""
        records = f"record {self.records[0]}"
        if len(self.records) > 1:
            records = f"records {', '.join(map(str, self.records))}"
        index = ", ".join(f"{name} {value}" for name, value in self.index.items())
        return f"{records}, position {self.position}, {index}"

    def figures(self) -> dict[str, Any]:
        """Return the content for JSON, which has no infinity: null says that it is not finite."""
        content = {
            key: float(f"{value:.6g}") if np.isfinite(value) else None
            for key, value in (("fraction", self.fraction), ("difference", self.difference))
        }
        place = {"tensor": self.tensor, "records": self.records, "position": self.position}
        return {**content, **place, **self.index}


# "prefill" or "decode" -> "logits" or "cache" -> the largest difference
StageResult = Mapping[GraphName, Mapping[str, Difference]]


def check_graphs(
    checkpoint: Path,
    records: Path,
    stages: Sequence[Stage],
    tokens: int,
    context: int,
    threads: int,
    output: Path,
) -> None:
    """Compare the graphs of all stages with PyTorch and write the figures to `output` (JSON).

    Raises, with the figures on stderr and no output, when a difference is above `LIMIT`; the
    message names the worst place of the first stage that is off.
    """
    frozen_sizes(tokens, context)
    spec = read_spec(read_json(checkpoint / "config.json"))
    prompts = choose_prompts(_usable_records(records, spec), tokens, context)
    for path in dict.fromkeys(path for stage in stages for path in (stage.prefill, stage.decode)):
        check_structure(path)
    _say(f"running PyTorch on {len(prompts)} prompts")
    references = list(torch_references(checkpoint, [prompt.ids for prompt in prompts], threads))
    gc.collect()  # the model goes before the first session comes
    results: dict[str, StageResult] = {}
    for stage in stages:
        result = compare_stage(stage, spec, prompts, references, tokens, context, threads)
        results[stage.name] = result
        logits, cache = (
            max(kinds[kind].fraction for kinds in result.values()) for kind in ("logits", "cache")
        )
        _say(f"{stage.name}: logits off by {logits:.1e} of their range, cache by {cache:.1e}")
    report = {
        "limit": LIMIT,
        "tokens": tokens,
        "context": context,
        "prompts": [_summary(prompt, tokens, context) for prompt in prompts],
        "stages": {
            name: {
                graph: {kind: difference.figures() for kind, difference in kinds.items()}
                for graph, kinds in result.items()
            }
            for name, result in results.items()
        },
        "weights_sha256": stored_identity(checkpoint / "model.safetensors"),
    }
    _require_agreement(results, report)
    write_json(output, report)


def check_structure(path: Path) -> None:
    """Raise unless onnx.checker takes the graph, with its shapes inferred, and its weights."""
    require_external_data(load_graph(path), path)
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise SnapbakeError(
            f"onnx.checker refuses {path}: {_first_line(error)}; build the graph again"
        ) from error


def choose_prompts(records: Sequence[TokenRecord], tokens: int, context: int) -> list[Prompt]:
    """Return a prompt that fills two prefill chunks but for a row, and the shortest record.

    Both end in `DECODE_STEPS` steps of the decode graph. Where no record is long enough, records
    are joined; where the context does not hold two chunks, one chunk must do.
    """
    chunks = 2 if 2 * tokens <= context else 1
    reach = min(context, chunks * tokens - 1 + DECODE_STEPS)
    needed = min(context, (chunks - 1) * tokens + 1 + DECODE_STEPS)
    joined: list[TokenRecord] = []
    single = next((record for record in records if len(record.ids) >= needed), None)
    for record in [single] if single else records:
        joined.append(record)
        ids = tuple(token for part in joined for token in part.ids)
        if len(ids) >= needed:
            break
    else:
        found = sum(len(record.ids) for record in records)
        raise SnapbakeError(
            f"the records hold {found} tokens in all and comparing two prefill chunks of {tokens} "
            f"needs {needed}; give more calibration records or a smaller chunk"
        )
    prompts = [Prompt(tuple(record.index for record in joined), ids[:reach])]
    rest = [record for record in records if record not in joined]
    if rest:
        short = min(rest, key=lambda record: len(record.ids))
        prompts.append(Prompt((short.index,), short.ids[:reach]))
    return prompts


def plan_steps(length: int, tokens: int, context: int) -> list[Step]:
    """Return the steps that read `length` tokens, the last `DECODE_STEPS` one by one."""
    steps: list[Step] = []
    past, prefilled = 0, max(1, length - DECODE_STEPS)
    while past < prefilled and past + tokens <= context:
        count = min(tokens, prefilled - past)
        steps.append(Step("prefill", past, count))
        past += count
    return [*steps, *(Step("decode", position, 1) for position in range(past, length))]


def compare_stage(
    stage: Stage,
    spec: DecoderSpec,
    prompts: Sequence[Prompt],
    references: Sequence[Reference],
    tokens: int,
    context: int,
    threads: int,
) -> StageResult:
    """Return the largest differences of a stage's graphs from PyTorch."""
    sessions = _Sessions(stage, threads)
    decoders = [_decoder(stage, spec, tokens, context, sessions.run) for _ in prompts]
    plans = [plan_steps(len(prompt.ids), tokens, context) for prompt in prompts]
    result: dict[GraphName, dict[str, Difference]] = {"prefill": {}, "decode": {}}
    # All prefill before all decode, so that one session is in memory at a time.
    for graph, worst in result.items():
        for prompt, reference, decoder, plan in zip(
            prompts, references, decoders, plans, strict=True
        ):
            for step in (step for step in plan if step.graph == graph):
                for kind, found in _step_differences(step, prompt, reference, decoder):
                    if kind not in worst or found.fraction > worst[kind].fraction:
                        worst[kind] = found
    return result


def _step_differences(
    step: Step, prompt: Prompt, reference: Reference, decoder: Decoder | OptimumDecoder
) -> Iterator[tuple[str, Difference]]:
    """Run a step; yield the difference of its logits and of each tensor of the cache."""
    end = step.past + step.count
    logits = decoder.step(step.graph, list(prompt.ids[step.past : end]))
    yield "logits", _difference("logits", logits[None], reference.logits[None], step, prompt)
    for name, value in reference.cache.items():
        rows = _rows(decoder, name, step.past, end)
        yield "cache", _difference(name, rows, value, step, prompt)


class _Sessions:
    """Runs the graphs of a stage by name; one onnxruntime session is open at a time."""

    def __init__(self, stage: Stage, threads: int) -> None:
        self._paths = {"prefill": stage.prefill, "decode": stage.decode}
        self._options = cpu_options(threads)
        self._open: Path | None = None
        self._session: Any = None

    def run(self, graph: str, feeds: Feeds) -> dict[str, NDArray]:
        path = self._paths[graph]
        try:
            if path != self._open:
                self._session = None  # freed before the next one is loaded
                self._session = InferenceSession(
                    path, self._options, providers=["CPUExecutionProvider"]
                )
                self._open = path
            names = [output.name for output in self._session.get_outputs()]
            return dict(zip(names, self._session.run(names, feeds), strict=True))
        except (RuntimeError, ValueError) as error:
            raise SnapbakeError(
                f"onnxruntime cannot run {path}: {_first_line(error)}; build the graph again"
            ) from error


def _decoder(
    stage: Stage, spec: DecoderSpec, tokens: int, context: int, run: Run
) -> Decoder | OptimumDecoder:
    if stage.name != "adapted":
        return OptimumDecoder(spec, tokens, context, stage.name == "exported", run)
    plain = Border(np.dtype(np.float32))
    names = [f"past_{kind}_{layer}_in" for layer in range(spec.layers) for kind in ("key", "value")]
    names += ["attention_mask", "position_ids_cos", "position_ids_sin", "logits"]
    pair = GraphPair(spec, tokens, context, _MASK_VALUE, dict.fromkeys(names, plain))
    return Decoder(pair, run)


def _rows(decoder: Decoder | OptimumDecoder, name: str, start: int, end: int) -> FloatArray:
    """Return rows of a cache tensor, [kv_heads, end - start, head_dim]."""
    cached = decoder.cache[name]
    if isinstance(decoder, OptimumDecoder):
        return cached[:, start:end]
    if "key" in name:
        return np.swapaxes(cached[0, :, :, start:end], 1, 2)
    return cached[0, :, start:end]


def _difference(
    tensor: str, found: FloatArray, reference: FloatArray, step: Step, prompt: Prompt
) -> Difference:
    """Compare [groups, step.count, width] with the rows of the step in [groups, n, width]."""
    span = float(reference.max() - reference.min())
    gap = np.abs(found - reference[:, step.past : step.past + step.count])
    gap[~np.isfinite(gap)] = np.inf
    group, row, column = (int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
    largest = float(gap[group, row, column])
    return Difference(
        fraction=largest / span if span else (np.inf if largest else 0.0),
        difference=largest,
        tensor=tensor,
        records=prompt.records,
        position=step.past + row,
        index={"token": column} if tensor == "logits" else {"head": group, "channel": column},
    )


def _summary(prompt: Prompt, tokens: int, context: int) -> dict[str, Any]:
    graphs = [step.graph for step in plan_steps(len(prompt.ids), tokens, context)]
    return {
        "records": prompt.records,
        "tokens": len(prompt.ids),
        "prefill_steps": graphs.count("prefill"),
        "decode_steps": graphs.count("decode"),
    }


def _require_agreement(results: Mapping[str, StageResult], report: Mapping[str, Any]) -> None:
    failed: dict[str, tuple[GraphName, Difference]] = {}
    for stage, result in results.items():
        found = [(graph, worst) for graph, kinds in result.items() for worst in kinds.values()]
        graph, worst = max(found, key=lambda entry: entry[1].fraction)
        if not worst.fraction <= LIMIT:
            failed[stage] = (graph, worst)
    if not failed:
        return
    _say(json.dumps(report, indent=2, sort_keys=True))
    first, *later = failed
    graph, worst = failed[first]
    also = f"; off as well: {', '.join(later)}" if later else ""
    raise SnapbakeError(
        f"the {first} {graph} graph differs from PyTorch by {worst.fraction:.2g} of the range of "
        f"{worst.tensor} at {worst.place()}, where {LIMIT:g} is allowed{also}; build the "
        f"{first} graphs again, and if this stays, report the model"
    )


def _usable_records(path: Path, spec: DecoderSpec) -> list[TokenRecord]:
    _, records = read_token_records(path)
    for record in records:
        if max(record.ids) >= spec.vocab_size:
            raise SnapbakeError(
                f"{path}: record {record.index} has the token {max(record.ids)} and the model has "
                f"{spec.vocab_size}; make the records with the model's own tokenizer"
            )
    return records


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
