"""A recipe's graphs on the CPU against PyTorch in fp32, on all held-out text."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Decoder, GraphPair, Run, read_pair
from snapbake.families import read_spec
from snapbake.files import read_json, write_json
from snapbake.metrics import CosineSums, TokenScores, agreeing, score_tokens, summarize
from snapbake.reading import decoded_cache, read_text, stacked_cache
from snapbake.subset import (
    Answer,
    Reading,
    Subset,
    choose_prompt,
    choose_readings,
    save_subset,
)
from snapbake.token_records import TokenRecord, read_token_records
from snapbake.torch_reference import TorchModel

# Answers that the report shows side by side, and their length in tokens.
_ANSWERS = 4
_ANSWER_TOKENS = 64


def stop_tokens(checkpoint: Path) -> tuple[int, ...]:
    """Return the token ids that end an answer, from the checkpoint's configuration files."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = read_json(checkpoint / name).get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(sorted(found))


def evaluate_recipe(
    checkpoint: Path,
    graphs: Mapping[str, Path],
    encodings: Path,
    held_out: Path,
    tokens: int,
    context: int,
    subset_records: int,
    generate: int,
    threads: int,
    output: Path,
    subset_output: Path,
) -> None:
    """Compare the recipe's graphs with PyTorch; write the figures and the emulator's subset."""
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, tokens, context, encodings)
    _, records = read_token_records(held_out)
    model, runner = TorchModel(checkpoint, threads), CpuRunner(graphs, threads)
    started = time.monotonic()
    scores: list[tuple[int, TokenScores]] = []
    cosines = CosineSums()
    for number, record in enumerate(records, start=1):
        reference = model.read(record.ids)
        logits, decoder = read_text(pair, runner.run, record.ids)
        scores.append((record.index, score_tokens(reference.logits, logits, record.ids)))
        for name, value in decoded_cache(pair, decoder).items():
            cosines.add(name, reference.cache[name], value)
        if number % 8 == 0 or number == len(records):
            seconds = time.monotonic() - started
            print(f"evaluated {number}/{len(records)} records in {seconds:.0f} s", file=sys.stderr)
    readings = [
        _reading(pair, runner.run, model, record, ids)
        for record, ids in choose_readings(records, subset_records, tokens, context)
    ]
    stop = stop_tokens(checkpoint)
    prompt = choose_prompt(records, [reading.record for reading in readings], tokens)
    answer = _answer(pair, runner.run, model, prompt, generate, stop)
    save_subset(subset_output, Subset(tuple(readings), answer))
    shown = [prompt, *(record for record in records if record is not prompt)][:_ANSWERS]
    answers = [_answer(pair, runner.run, model, each, _ANSWER_TOKENS, stop) for each in shown]
    write_json(
        output,
        {
            **summarize(scores),
            "kv_cosine": cosines.result(),
            "answers": _texts(checkpoint, shown, answers),
        },
    )


def _reading(
    pair: GraphPair, run: Run, model: TorchModel, record: TokenRecord, ids: tuple[int, ...]
) -> Reading:
    reference = model.read(ids)
    logits, _ = read_text(pair, run, ids)
    return Reading(record.index, ids, reference.logits, logits, stacked_cache(reference.cache))


def _answer(
    pair: GraphPair,
    run: Run,
    model: TorchModel,
    record: TokenRecord,
    count: int,
    stop: tuple[int, ...],
) -> Answer:
    prompt = record.ids[: record.prompt_length]
    count = min(count, pair.context - len(prompt))
    return Answer(
        record.index,
        prompt,
        count,
        stop,
        tuple(model.generate(prompt, count, stop)),
        tuple(Decoder(pair, run).generate(list(prompt), count, stop)),
    )


def _texts(
    checkpoint: Path, records: Sequence[TokenRecord], answers: Sequence[Answer]
) -> list[dict[str, Any]]:
    """Return the answers as text, with how many tokens agree from the start."""
    # Imported here: only the texts need the tokenizer, which takes seconds to load.
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)

    def text(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True).strip()

    return [
        {
            "record": record.index,
            "prompt": record.prompt,
            "expected": record.answer,
            "float": text(answer.reference),
            "recipe": text(answer.cpu),
            "tokens": len(answer.reference),
            "agreeing_tokens": agreeing(answer.reference, answer.cpu),
        }
        for record, answer in zip(records, answers, strict=True)
    ]
