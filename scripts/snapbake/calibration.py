"""Choosing the records that calibrate a quantised model, and others that verify it.

A record is rendered with the model's own chat template and tokenised as the model's runtime does
it. The choice depends on the data, the seed, the numbers asked for and the checkpoint's template
and tokenizer, and on nothing else: not on the day, the folder or the machine.
"""

import datetime
import hashlib
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, require_file, sha256_file, write_json
from snapbake.records import (
    Conversation,
    DataSet,
    Message,
    UnusableRecordError,
    read_data_set,
)
from snapbake.safetensors_file import stored_identity
from snapbake.token_records import TokenRecord, write_token_records

# Tokens of the context that a prompt leaves for the answer: verification generates as many.
ANSWER_ROOM = 16

# Tokens of answers below which the ranges of the decode graph would be chance.
MIN_ANSWER_TOKENS = 64

# Some templates (Llama 3.2, SmolLM3) write today's date into the prompt. The calibration data of
# two days would differ by it, so every day is this one, Llama's own default.
TEMPLATE_DATE = datetime.date(2024, 7, 26)

# A template is a program out of a downloaded folder, so it does not get for ever.
_RENDER_SECONDS = 10.0

# Indices that the manifest lists for one reason; a bad file may have a hundred thousand of them.
_LISTED = 20


@dataclass(frozen=True)
class RenderedRecord:
    """A tokenised record and how it came about.

    `exact` says that the prompt, rendered alone, is the beginning of the conversation, token for
    token. `truncated` says that the context cut the end of the answer off.
    """

    record: TokenRecord
    exact: bool
    truncated: bool


@dataclass
class Selection:
    """What was chosen. `skipped` maps reasons to the indices of records that were looked at."""

    calibration: list[RenderedRecord] = field(default_factory=list)
    held_out: list[RenderedRecord] = field(default_factory=list)
    skipped: dict[str, list[int]] = field(default_factory=dict)


class ChatTokenizer:
    """The chat template and the tokenizer of a checkpoint folder."""

    def __init__(self, checkpoint: Path) -> None:
        """Load both; raise SnapbakeError when one is missing or cannot be used."""
        self.checkpoint = checkpoint
        self.vocabulary = _vocabulary_size(checkpoint)
        self._tokenizer = _load_tokenizer(checkpoint)
        self.template = _chat_template(checkpoint, self._tokenizer)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation, with the header of an answer to come if asked for.

        Raises UnusableRecordError when the template refuses the conversation and SnapbakeError
        when the template itself is broken or takes more than ten seconds.
        """
        from jinja2 import TemplateSyntaxError

        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            with _time_limit(_RENDER_SECONDS):
                return self._tokenizer.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    strftime_now=TEMPLATE_DATE.strftime,
                )
        except TemplateSyntaxError as error:
            raise SnapbakeError(
                f"the chat template of {self.checkpoint} has a mistake in line {error.lineno}: "
                f"{error.message}; mend its chat_template.jinja"
            ) from error
        except _TimeLimitError as error:
            raise SnapbakeError(
                f"the chat template of {self.checkpoint} rendered for more than "
                f"{_RENDER_SECONDS:.0f} seconds; replace its chat_template.jinja by the one that "
                "the model was trained with"
            ) from error
        except Exception as error:
            # Whatever the template's own program raises concerns the conversation it was given.
            raise UnusableRecordError(
                f"is refused by the chat template ({_first_line(error)})"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the tokens of rendered text; the template, not the tokenizer, adds BOS."""
        return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def record(self, conversation: Conversation, context: int) -> RenderedRecord:
        """Render and tokenise a conversation for a context of `context` tokens.

        Raises UnusableRecordError with the reason, and SnapbakeError when the tokenizer makes
        tokens that the model does not have.
        """
        messages = conversation.messages
        question, answer = messages[-2].content, messages[-1].content
        whole = self.render(messages, add_generation_prompt=False)
        asked = self.render(messages[:-1], add_generation_prompt=True)
        ids, prompt = self.encode(whole), self.encode(asked)
        self._require_known(conversation.index, ids)

        # The two differ where a template treats the turn after the last question specially, e.g.
        # strips thinking or opens it in the generation prompt, or where a token spans the border.
        # What they have in common is then the prompt, as long as it reaches past the question.
        shared = _shared_length(ids, prompt)
        exact = shared == len(prompt)
        if not exact and question.strip() not in whole[: _shared_length(whole, asked)]:
            raise UnusableRecordError("is rendered differently without its answer")
        if shared >= len(ids):
            raise UnusableRecordError("is rendered without its answer")
        if shared > context - ANSWER_ROOM:
            raise UnusableRecordError(
                f"has a prompt that leaves fewer than {ANSWER_ROOM} tokens of the context"
            )
        cut = tuple(ids[:context])
        return RenderedRecord(
            TokenRecord(conversation.index, cut, shared, question, answer),
            exact,
            truncated=len(ids) > context,
        )

    def _require_known(self, index: int, ids: Sequence[int]) -> None:
        largest = max(ids, default=0)
        if largest >= self.vocabulary:
            token = self._tokenizer.convert_ids_to_tokens(largest)
            raise SnapbakeError(
                f"record {index} holds token {largest} ({token!r}), and config.json of "
                f"{self.checkpoint} has a vocab_size of {self.vocabulary}; the tokenizer belongs "
                "to another model, so copy the model's own tokenizer.json"
            )


def write_selection(
    data: Path,
    name: str | None,
    checkpoint: Path,
    context: int,
    records: int,
    held_out: int,
    seed: int,
    output_dir: Path,
) -> None:
    """Choose records of a data set and write calibration.json, heldout.json and manifest.json.

    `name` is the one in a dataset_info.json, or None when `data` is a file of records. Nothing is
    written when something is wrong. The manifest comes last.
    """
    data_set = read_data_set(data, name)
    tokenizer = ChatTokenizer(checkpoint)
    selection = select(data_set, tokenizer, context, records, held_out, seed)
    calibration = [rendered.record for rendered in selection.calibration]
    write_token_records(output_dir / "calibration.json", context, calibration)
    write_token_records(
        output_dir / "heldout.json", context, [rendered.record for rendered in selection.held_out]
    )
    write_json(
        output_dir / "manifest.json", _manifest(data_set, tokenizer, selection, context, seed)
    )
    skipped = sum(map(len, selection.skipped.values()))
    print(
        f"{records} records for calibration and {held_out} held out, of {len(data_set.rows)}; "
        f"{skipped} left out",
        file=sys.stderr,
    )


def select(
    data_set: DataSet,
    tokenizer: ChatTokenizer,
    context: int,
    records: int,
    held_out: int,
    seed: int,
) -> Selection:
    """Choose `held_out` and then `records` usable records in an order given by `seed`.

    The held-out ones come first, so that they stay the same when more or fewer are calibrated
    with. No two chosen records have the same tokens. Only as many records are rendered as it
    takes. Raises SnapbakeError when there are too few.
    """
    order = list(range(len(data_set.rows)))
    random.Random(seed).shuffle(order)
    selection = Selection()
    chosen: list[RenderedRecord] = []
    seen: set[tuple[int, ...]] = set()
    for index in order[: data_set.num_samples]:
        if len(chosen) == held_out + records:
            break
        try:
            rendered = tokenizer.record(data_set.conversation(index), context)
            if rendered.record.ids in seen:
                raise UnusableRecordError("repeats another record")
        except UnusableRecordError as error:
            selection.skipped.setdefault(str(error), []).append(index)
            continue
        seen.add(rendered.record.ids)
        chosen.append(rendered)
    if len(chosen) < held_out + records:
        raise SnapbakeError(_too_few(data_set, selection, len(chosen), records, held_out))
    selection.held_out, selection.calibration = chosen[:held_out], chosen[held_out:]
    answers = _count(selection.calibration, _answer_length)
    if answers < MIN_ANSWER_TOKENS:
        raise SnapbakeError(
            f"the answers of the {records} calibration records have {answers} tokens, and "
            f"calibrating the decode graph takes {MIN_ANSWER_TOKENS}; take more records, or data "
            "with longer answers"
        )
    return selection


def _too_few(
    data_set: DataSet, selection: Selection, usable: int, records: int, held_out: int
) -> str:
    place = f"data set {data_set.name!r}" if data_set.name else str(data_set.files[0])
    limit = f" (num_samples takes {data_set.num_samples})" if data_set.num_samples else ""
    reasons = sorted(selection.skipped.items(), key=lambda item: (-len(item[1]), item[0]))
    left_out = ", ".join(f"{len(indices)} ({reason})" for reason, indices in reasons[:3])
    if len(reasons) > 3:
        left_out += f", {sum(len(indices) for _, indices in reasons[3:])} for other reasons"
    return (
        f"{place} has {usable} usable of {len(data_set.rows)} records{limit}, and "
        f"{records + held_out} are needed ({records} for calibration, {held_out} held out)"
        + (f"; left out were {left_out}" if left_out else "")
        + "; give more data, or ask for fewer records"
    )


def _manifest(
    data_set: DataSet, tokenizer: ChatTokenizer, selection: Selection, context: int, seed: int
) -> dict[str, Any]:
    chosen = selection.held_out + selection.calibration
    return {
        "calibration": _summary(selection.calibration),
        "chat_template_sha256": hashlib.sha256(tokenizer.template.encode("utf-8")).hexdigest(),
        "context": context,
        "data": {
            # Names and not paths: the same data in another folder gives the same manifest.
            "files": [{"name": path.name, "sha256": sha256_file(path)} for path in data_set.files],
            "layout": data_set.layout.formatting,
            "name": data_set.name,
            "records": len(data_set.rows),
        },
        "held_out": _summary(selection.held_out),
        "prompt_end": {
            "common_prefix": sorted(item.record.index for item in chosen if not item.exact),
            "explanation": "A prompt ends where the conversation goes on after the generation "
            "prompt. For the records under common_prefix the template renders the two "
            "differently, and the prompt is what they have in common.",
        },
        "seed": seed,
        "skipped": {
            reason: {"count": len(indices), "indices": sorted(indices)[:_LISTED]}
            for reason, indices in selection.skipped.items()
        },
        "template_date": TEMPLATE_DATE.isoformat(),
        "tokenizer_sha256": sha256_file(tokenizer.checkpoint / "tokenizer.json"),
        "weights_sha256": stored_identity(tokenizer.checkpoint / "model.safetensors"),
    }


def _summary(chosen: Sequence[RenderedRecord]) -> dict[str, Any]:
    return {
        "answer_tokens": _count(chosen, _answer_length),
        "count": len(chosen),
        "indices": [item.record.index for item in chosen],
        "prompt_tokens": _count(chosen, lambda record: record.prompt_length),
        "truncated": sum(item.truncated for item in chosen),
    }


def _count(chosen: Sequence[RenderedRecord], measure: Callable[[TokenRecord], int]) -> int:
    return sum(measure(item.record) for item in chosen)


def _shared_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many elements two sequences have in common at the beginning."""
    for place, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return place
    return min(len(first), len(second))


def _answer_length(record: TokenRecord) -> int:
    return len(record.ids) - record.prompt_length


def _vocabulary_size(checkpoint: Path) -> int:
    path = checkpoint / "config.json"
    content = read_json(path)
    size = content.get("vocab_size") if isinstance(content, dict) else None
    if not isinstance(size, int):
        raise SnapbakeError(f"{path} has no vocab_size; give the folder of a language model")
    return size


def _load_tokenizer(checkpoint: Path) -> Any:
    require_file(checkpoint / "tokenizer.json")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            checkpoint, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # transformers and tokenizers raise nearly everything here, bare Exception included.
        raise SnapbakeError(
            f"the tokenizer of {checkpoint} cannot be loaded ({_first_line(error)}); copy the "
            "tokenizer files of the model it was fine-tuned from"
        ) from error


def _chat_template(checkpoint: Path, tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if not template:
        raise SnapbakeError(
            f"{checkpoint} has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), so no prompt can be made as in training; copy the one of the "
            "model it was fine-tuned from"
        )
    if isinstance(template, dict) and "default" not in template:
        raise SnapbakeError(
            f"{checkpoint} has chat templates named {', '.join(template)} and none named default; "
            "save the one the model was trained with as chat_template.jinja"
        )
    return tokenizer.get_chat_template()


class _TimeLimitError(Exception):
    """Raised inside the block of `_time_limit`."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeLimitError in the block when it takes longer; main thread only."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TimeLimitError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0][:160] if lines else "no message"
    return f"{type(error).__name__}: {text}"
