"""What PyTorch in fp32 makes of the held-out text that is looked at closely."""

import sys
from pathlib import Path

from snapbake.files import read_json
from snapbake.reading import stacked_cache
from snapbake.subset import Answer, Reading, Subset, choose_prompts, choose_readings, save_subset
from snapbake.token_records import read_token_records
from snapbake.torch_reference import TorchModel

# Answers that the report shows side by side, and the length of all but the first in tokens.
_ANSWERS = 4
_ANSWER_TOKENS = 64


def stop_tokens(checkpoint: Path) -> tuple[int, ...]:
    """Return the token ids that end an answer, from the checkpoint's configuration files."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = read_json(checkpoint / name).get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(sorted(found))


def compute_reference(
    checkpoint: Path,
    held_out: Path,
    tokens: int,
    readings: int,
    generate: int,
    threads: int,
    output: Path,
) -> None:
    """Choose the subset of the held-out records, let PyTorch read and answer it, and save it.

    The emulator gives `generate` tokens of the first answer.
    """
    context, records = read_token_records(held_out)
    model, stop = TorchModel(checkpoint, threads), stop_tokens(checkpoint)
    chosen = choose_readings(records, readings, tokens, context)
    read = []
    for record, ids in chosen:
        print(f"PyTorch reads record {record.index}, {len(ids)} tokens", file=sys.stderr)
        reference = model.read(ids)
        cache = stacked_cache(reference.cache)
        read.append(Reading(record.index, ids, reference.logits, cache))
    answers: list[Answer] = []
    taken = [record.index for record, _ in chosen]
    for record in choose_prompts(records, _ANSWERS, taken, tokens):
        prompt = record.ids[: record.prompt_length]
        count = min(_ANSWER_TOKENS if answers else generate, context - len(prompt))
        print(f"PyTorch answers record {record.index}", file=sys.stderr)
        answer, margins = model.generate(prompt, count, stop)
        answers.append(Answer(record.index, prompt, count, tuple(answer), tuple(margins)))
    save_subset(output, Subset(tuple(read), tuple(answers), stop))
