"""A recipe's graphs on the CPU against PyTorch in fp32, on all held-out text."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Decoder, read_pair
from snapbake.families import read_spec
from snapbake.files import read_json, write_json
from snapbake.metrics import CosineSums, TokenScores, agreeing, score_tokens, summarize
from snapbake.reading import decoded_cache, read_text
from snapbake.safetensors_file import stored_identity
from snapbake.subset import Answer, load_subset, save_arrays
from snapbake.token_records import TokenRecord, read_token_records
from snapbake.torch_reference import TorchModel


def evaluate_recipe(
    checkpoint: Path,
    graphs: Mapping[str, Path],
    encodings: Path,
    held_out: Path,
    reference: Path,
    tokens: int,
    threads: int,
    output: Path,
    cpu_output: Path,
) -> None:
    """Compare the recipe's graphs with PyTorch over all held-out records and write the figures.

    `cpu_output` (.npz) gets the CPU's logits of the readings of the subset in `reference`,
    reading_{k}_logits [n, V], and the tokens of its first answer, answer_ids.
    """
    spec = read_spec(read_json(checkpoint / "config.json"))
    context, records = read_token_records(held_out)
    pair = read_pair(spec, tokens, context, encodings)
    runner = CpuRunner(graphs, threads)
    subset = load_subset(reference)
    arrays: dict[str, NDArray] = {
        f"reading_{number}_logits": read_text(pair, runner.run, reading.ids)[0]
        for number, reading in enumerate(subset.readings)
    }
    answers = [
        Decoder(pair, runner.run).generate(list(answer.prompt), answer.count, subset.stop)
        for answer in subset.answers
    ]
    arrays["answer_ids"] = np.array(answers[0], np.int64)

    model = TorchModel(checkpoint, threads)
    scores: list[tuple[int, TokenScores]] = []
    cosines = CosineSums()
    started = time.monotonic()
    for number, record in enumerate(records, start=1):
        expected = model.read(record.ids)
        logits, decoder = read_text(pair, runner.run, record.ids)
        scores.append((record.index, score_tokens(expected.logits, logits, record.ids)))
        for name, value in decoded_cache(pair, decoder).items():
            cosines.add(name, expected.cache[name], value)
        if number % 8 == 0 or number == len(records):
            seconds = time.monotonic() - started
            print(f"evaluated {number}/{len(records)} records in {seconds:.0f} s", file=sys.stderr)
    save_arrays(cpu_output, arrays)
    write_json(
        output,
        {
            **summarize(scores),
            "kv_cosine": cosines.result(),
            "answers": _texts(checkpoint, records, subset.answers, answers),
            "weights_sha256": stored_identity(checkpoint / "model.safetensors"),
        },
    )


def _texts(
    checkpoint: Path,
    records: Sequence[TokenRecord],
    expected: Sequence[Answer],
    found: Sequence[Sequence[int]],
) -> list[dict[str, Any]]:
    """Return the answers as text, with how many tokens agree from the start."""
    # Imported here: only the texts need the tokenizer, which takes seconds to load.
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    by_index = {record.index: record for record in records}

    def text(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True).strip()

    return [
        {
            "record": answer.record,
            "prompt": by_index[answer.record].prompt,
            "expected": by_index[answer.record].answer,
            "float": text(answer.tokens),
            "recipe": text(ids),
            "tokens": len(answer.tokens),
            "agreeing_tokens": agreeing(answer.tokens, ids),
            "margin_at_difference": answer.margin_at_difference(ids),
        }
        for answer, ids in zip(expected, found, strict=True)
    ]
