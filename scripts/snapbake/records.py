"""Fine-tuning data as conversations.

Layouts and names are LLaMA-Factory's (data/README.md of its repository): `alpaca` (instruction,
input, output), `sharegpt` (a list of turns), its variant with OpenAI's role and content, and
`dataset_info.json`, which names files, columns and tags. Files are JSON (a list) or JSON lines.

A whole file that cannot be read is an error. A single record that cannot be used is not: it is
left out with a reason. Records are turned into conversations one at a time, on demand, because a
caller needs a few hundred of perhaps a million.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, require_file

_CONVERT = "convert it to a JSON list of records"
_READABLE = (".json", ".jsonl")
_UNREADABLE = {
    ".csv": f'{_CONVERT}, e.g. `pandas.read_csv(...).to_json(..., orient="records")`',
    ".parquet": f'{_CONVERT}, e.g. `pandas.read_parquet(...).to_json(..., orient="records")`',
    ".arrow": f"{_CONVERT}, e.g. `datasets.Dataset.from_file(...).to_json(..., lines=True)`",
    ".txt": "plain text has no questions and answers, so give the instruction data in JSON",
    ".gz": "unpack it first",
    ".zip": "unpack it first",
    ".zst": "unpack it first",
}

# Keys of a dataset_info.json entry that say where data is, apart from file_name. They win over
# file_name in LLaMA-Factory, so a file named beside them is not what the model was trained on.
_REMOTE_KEYS = {
    "hf_hub_url": "on the Hugging Face hub",
    "ms_hub_url": "on the ModelScope hub",
    "om_hub_url": "on the Modelers hub",
    "script_url": "made by a loading script",
    "cloud_file_name": "in cloud storage",
}

_DEFAULT_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "messages": "conversations",
}
# What the records of a bare file may carry besides; dataset_info.json has to name these.
_USUAL_COLUMNS = {
    name: name
    for name in ("system", "history", "chosen", "kto_tag", "tools", "images", "videos", "audios")
}
_USUAL_KEYS = {*_DEFAULT_COLUMNS.values(), "messages"}
_MEDIA = ("images", "videos", "audios")

# The roles of the tags, by the name that LLaMA-Factory gives a tag and the value it has unless
# dataset_info.json says otherwise.
_TAG_ROLES = {
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant"),
    "system_tag": ("system", "system"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call", "tool"),
}
_USUAL_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_call": "tool",
    "function": "tool",
}

# What LLaMA-Factory's converter `openai` adds to the system text of records without tools.
_OPENAI_SYSTEM = "detailed thinking off"

# How many records of a bare file are looked at to tell its layout.
_SAMPLE = 100


@dataclass(frozen=True)
class Message:
    """One turn; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """A usable record: an optional system message, then user and assistant in turn.

    The last message is the assistant's. `index` is the number of the record in its data set,
    counted from 0 over all of its files.
    """

    index: int
    messages: tuple[Message, ...]


class UnusableRecordError(Exception):
    """A record that is left out; the message is the reason, the same for the same kind."""


@dataclass(frozen=True)
class Layout:
    """Where the parts of a record are.

    `columns` maps LLaMA-Factory's names of parts to keys of the record, `roles` maps the values
    of `role_tag` to user, assistant, system and tool. With `ranking` the answer is the chosen one.
    """

    formatting: str
    columns: Mapping[str, str]
    roles: Mapping[str, str]
    ranking: bool = False
    role_tag: str = "from"
    content_tag: str = "value"


@dataclass(frozen=True)
class DataSet:
    """The records of one data set as they are in its files.

    `name` is the one in dataset_info.json, or None for a bare file. `num_samples` is the number
    of records that dataset_info.json limits the data set to.
    """

    files: tuple[Path, ...]
    layout: Layout
    rows: list[Any]
    name: str | None = None
    num_samples: int | None = None

    def conversation(self, index: int) -> Conversation:
        """Return record `index`; raise UnusableRecordError with the reason when it is unusable."""
        row = self.rows[index]
        if not isinstance(row, dict):
            raise UnusableRecordError("is not a JSON object")
        columns = self.layout.columns
        if any(row.get(columns.get(part, "")) for part in _MEDIA):
            raise UnusableRecordError("has images, video or audio")
        if row.get(columns.get("tools", "")) not in (None, "", "[]", []):
            raise UnusableRecordError("uses tools")
        if row.get(columns.get("kto_tag", "")) is False:
            raise UnusableRecordError("has an answer that is marked as undesirable")
        if self.layout.formatting == "alpaca":
            messages = _alpaca_messages(row, self.layout)
        else:
            messages = _sharegpt_messages(row, self.layout)
        if messages[0].role == "system" and not messages[0].content.strip():
            messages = messages[1:]
        for message in messages:
            _require_content(message)
        return Conversation(index, tuple(messages))


def read_data_set(data: Path, name: str | None = None) -> DataSet:
    """Read a file of records, or the data set `name` of a dataset_info.json.

    Raises SnapbakeError for a file that is missing, broken, of another kind, or in a layout that
    is not known.
    """
    if name is None:
        rows = _read_rows(data)
        return DataSet((data,), _detect_layout(data, rows), rows)
    entry = _read_entry(data, name)
    layout = _entry_layout(data, name, entry)
    files = _entry_files(data, name, entry)
    rows = [row for path in files for row in _read_rows(path)]
    return DataSet(files, layout, rows, name, _entry_limit(data, name, entry))


def find_data_files(data: Path, name: str | None = None) -> tuple[Path, ...]:
    """Return every file that `read_data_set` reads with these arguments.

    Only dataset_info.json itself is read for it, so a workflow can declare inputs with it.
    """
    if name is None:
        return (data,)
    return (data, *_entry_files(data, name, _read_entry(data, name)))


def _alpaca_messages(row: Mapping[str, Any], layout: Layout) -> list[Message]:
    columns = layout.columns
    messages = [Message("system", _text(row, columns.get("system")))]
    history = row.get(columns.get("history", "")) or []
    if not isinstance(history, list):
        raise UnusableRecordError("has a history that is not a list of question and answer pairs")
    for pair in history:
        match pair:
            case [str(asked), str(answered)]:
                messages += [Message("user", asked), Message("assistant", answered)]
            case _:
                raise UnusableRecordError(
                    "has a history that is not a list of question and answer pairs"
                )
    parts = (_text(row, columns.get("prompt")), _text(row, columns.get("query")))
    messages.append(Message("user", "\n".join(part for part in parts if part)))
    answer = columns.get("chosen" if layout.ranking else "response")
    messages.append(Message("assistant", _text(row, answer)))
    return messages


def _sharegpt_messages(row: Mapping[str, Any], layout: Layout) -> list[Message]:
    turns = row.get(layout.columns.get("messages", ""))
    if not isinstance(turns, list) or not turns:
        raise UnusableRecordError("has no list of turns")
    messages = [_turn(turn, layout) for turn in turns]
    if layout.ranking:
        chosen = row.get(layout.columns.get("chosen", ""))
        if not isinstance(chosen, dict):
            raise UnusableRecordError("has no chosen answer")
        messages.append(_turn(chosen, layout))
    if messages[0].role == "system":
        system, messages = messages[0].content, messages[1:]
    else:
        system = _text(row, layout.columns.get("system"))
    if layout.formatting == "openai" and "detailed thinking o" not in system:
        system = f"{system}\n{_OPENAI_SYSTEM}" if system else _OPENAI_SYSTEM
    if any(message.role == "tool" for message in messages):
        raise UnusableRecordError("uses tools")
    for place, message in enumerate(messages):
        if message.role != ("user", "assistant")[place % 2]:
            raise UnusableRecordError("has turns that are not user and assistant in turn")
    if len(messages) % 2 or not messages:
        raise UnusableRecordError("does not end with an answer")
    return [Message("system", system), *messages]


def _turn(turn: Any, layout: Layout) -> Message:
    if not isinstance(turn, dict) or layout.role_tag not in turn:
        raise UnusableRecordError("has a turn without a role")
    tag = turn[layout.role_tag]
    role = layout.roles.get(tag) if isinstance(tag, str) else None
    if role is None:
        raise UnusableRecordError("has a turn with an unknown role")
    content = turn.get(layout.content_tag)
    if role == "tool" or turn.get("tool_calls"):
        raise UnusableRecordError("uses tools")
    if isinstance(content, list):
        # OpenAI's list of parts, each with a type.
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            for part in content
        ]
        if not all(isinstance(part, str) for part in parts):
            raise UnusableRecordError("has images, video or audio")
        content = "".join(str(part) for part in parts)
    if content is not None and not isinstance(content, str):
        raise UnusableRecordError("has a part that is not text")
    return Message(role, content or "")


def _text(row: Mapping[str, Any], key: str | None) -> str:
    value = row.get(key) if key is not None else None
    if value is not None and not isinstance(value, str):
        raise UnusableRecordError("has a part that is not text")
    return value or ""


def _require_content(message: Message) -> None:
    if not message.content.strip():
        kind = "an answer" if message.role == "assistant" else "a question"
        raise UnusableRecordError(f"has {kind} without text")
    try:
        message.content.encode("utf-8")
    except UnicodeEncodeError as error:
        # A lone half of a surrogate pair, which JSON can say and a tokenizer cannot read.
        raise UnusableRecordError("has text that is not valid Unicode") from error


def _read_rows(path: Path) -> list[Any]:
    """Read the records of a JSON list or of JSON lines; which of them the content says."""
    if path.is_dir():
        raise SnapbakeError(
            f"{path} is a folder; give a file of records, or a dataset_info.json and a name in it"
        )
    require_file(path)
    _require_readable_kind(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SnapbakeError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    rows = _parse(path, text) if text.lstrip()[:1] == "[" else _read_lines(path, text)
    if not rows:
        raise SnapbakeError(f"{path} holds no records; give the data the model was fine-tuned on")
    return rows


def _read_lines(path: Path, text: str) -> list[Any]:
    # Not str.splitlines: it also splits at U+2028 and others, which may stand inside a string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [_parse(path, line, number) for number, line in lines]
    if not lines:
        return []
    content = _parse(path, text)
    if _is_dataset_info(content):
        raise SnapbakeError(
            f"{path} describes data sets and holds no records; name one of its data sets as well: "
            f"{_some(content)}"
        )
    if not isinstance(content, dict):
        raise SnapbakeError(f"{path} holds a single value; give a JSON list of records")
    if len(lines) > 1 and not _USUAL_KEYS & content.keys():
        raise SnapbakeError(
            f"{path} holds one JSON object with the keys {_some(content)}; give a JSON list of "
            "records or one record a line"
        )
    return [content]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return False
    return True


def _parse(path: Path, text: str, line: int = 1) -> Any:
    """Parse JSON text that begins at `line` of `path`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SnapbakeError(
            f"{path} is not valid JSON: {error.msg} at line {line + error.lineno - 1}, "
            f"column {error.colno}; mend or replace the file"
        ) from error
    except RecursionError as error:
        raise SnapbakeError(
            f"{path} is nested too deeply for a file of records; check that it is the right file"
        ) from error


def _is_dataset_info(content: Any) -> bool:
    places = {"file_name", *_REMOTE_KEYS}
    return isinstance(content, dict) and any(
        isinstance(entry, dict) and places & entry.keys() for entry in content.values()
    )


def _detect_layout(path: Path, rows: list[Any]) -> Layout:
    sample = [row for row in rows[:_SAMPLE] if isinstance(row, dict)]
    for row in sample:
        for key in ("conversations", "messages"):
            if isinstance(row.get(key), list):
                return _detect_turns(row, key)
        if "instruction" in row and ("output" in row or "chosen" in row):
            columns = _DEFAULT_COLUMNS | _USUAL_COLUMNS
            return Layout("alpaca", columns, _USUAL_ROLES, ranking="output" not in row)
    if not sample:
        raise SnapbakeError(
            f"{path} holds no JSON objects among its first {_SAMPLE} records; give records with "
            "instruction and output, conversations, or messages"
        )
    if "text" in sample[0]:
        raise SnapbakeError(
            f"{path} is pre-training text (key 'text') without questions and answers; give the "
            "instruction data the model was fine-tuned on"
        )
    raise SnapbakeError(
        f"{path} has records with the keys {_some(sample[0])}, and not instruction and output, "
        "conversations, or messages; say which column is which in a dataset_info.json and give "
        "that file with the name of the data set"
    )


def _detect_turns(row: Mapping[str, Any], key: str) -> Layout:
    turns = [turn for turn in row[key] if isinstance(turn, dict)]
    openai = any("role" in turn for turn in turns)
    return Layout(
        "sharegpt",
        {"messages": key} | _USUAL_COLUMNS,
        _USUAL_ROLES,
        ranking=isinstance(row.get("chosen"), dict),
        role_tag="role" if openai else "from",
        content_tag="content" if openai else "value",
    )


def _read_entry(data: Path, name: str) -> Mapping[str, Any]:
    if data.is_dir():
        raise SnapbakeError(
            f"{data} is a folder; give the path of the dataset_info.json that names {name!r}"
        )
    require_file(data)
    if data.suffix.lower() != ".json":
        raise SnapbakeError(
            f"{data} is not a dataset_info.json, so {name!r} cannot be looked up in it; give a "
            "dataset_info.json, or leave the name of the data set out"
        )
    content = read_json(data)
    if not isinstance(content, dict):
        raise SnapbakeError(
            f"{data} holds records and no data sets by name; leave the name {name!r} out, or give "
            "a dataset_info.json"
        )
    entry = content.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, content, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it names {_some(content)}"
        raise SnapbakeError(f"{data} has no data set {name!r}; {hint}")
    if not isinstance(entry, dict):
        raise SnapbakeError(
            f"{data} has an entry {name!r} that is not an object with file_name; mend the entry"
        )
    return entry


def _entry_files(data: Path, name: str, entry: Mapping[str, Any]) -> tuple[Path, ...]:
    for key, place in _REMOTE_KEYS.items():
        if key in entry:
            raise SnapbakeError(
                f"data set {name!r} of {data} is {place} ({key}: {entry[key]}); download it as "
                "JSON and give that file, or put its file_name into the entry instead"
            )
    file_name = entry.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        raise SnapbakeError(
            f"data set {name!r} of {data} has no file_name; say which file holds its records"
        )
    path = data.parent / file_name
    if not path.is_dir():
        return (path,)
    files = tuple(item for item in sorted(path.iterdir()) if item.is_file() and item.name[0] != ".")
    if not files:
        raise SnapbakeError(f"{path} is an empty folder; put the files of {name!r} into it")
    kinds = sorted({item.suffix.lower() for item in files})
    if len(kinds) > 1:
        raise SnapbakeError(
            f"{path} holds files of several kinds ({', '.join(kinds)}); LLaMA-Factory reads "
            "folders of one kind, so move the others away"
        )
    return files


def _entry_layout(data: Path, name: str, entry: Mapping[str, Any]) -> Layout:
    formatting = entry.get("formatting", "alpaca")
    if formatting not in ("alpaca", "sharegpt", "openai"):
        raise SnapbakeError(
            f"data set {name!r} of {data} has the formatting {formatting!r}; it must be alpaca, "
            "sharegpt or openai"
        )
    # Where an entry has columns, LLaMA-Factory knows no others: one that is not named is not read.
    columns = _strings(data, name, entry, "columns") or _DEFAULT_COLUMNS
    tags = _strings(data, name, entry, "tags")
    ranking = bool(entry.get("ranking", False))
    answer = "chosen" if ranking else "response" if formatting == "alpaca" else "messages"
    needed = {answer} | ({"prompt"} if formatting == "alpaca" else {"messages"})
    missing = sorted(needed - columns.keys())
    if missing:
        raise SnapbakeError(
            f"data set {name!r} of {data} does not say which column is {' and '.join(missing)}; "
            "add it to the columns of the entry"
        )
    roles = {tags.get(tag, usual): role for tag, (usual, role) in _TAG_ROLES.items()}
    return Layout(
        formatting,
        columns,
        roles,
        ranking,
        tags.get("role_tag", "from"),
        tags.get("content_tag", "value"),
    )


def _strings(data: Path, name: str, entry: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return an optional object of strings out of an entry; null values are left out."""
    value = entry.get(key) or {}
    if not isinstance(value, dict):
        raise SnapbakeError(f"data set {name!r} of {data} has {key} that are not an object")
    strings = {part: text for part, text in value.items() if text is not None}
    for part, text in strings.items():
        if not isinstance(text, str):
            raise SnapbakeError(
                f"data set {name!r} of {data} gives {key}.{part} as {text!r}; it must be a string"
            )
    return strings


def _entry_limit(data: Path, name: str, entry: Mapping[str, Any]) -> int | None:
    limit = entry.get("num_samples")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise SnapbakeError(
            f"data set {name!r} of {data} has num_samples {limit!r}; it must be a whole number "
            "from 1"
        )
    return limit


def _require_readable_kind(path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix in _READABLE:
        return
    what_to_do = _UNREADABLE.get(suffix, _CONVERT)
    raise SnapbakeError(
        f"{path} is {f'a {suffix} file' if suffix else 'a file without a suffix'}, and records are "
        f"read from .json and .jsonl; {what_to_do}"
    )


def _some(names: Mapping[str, Any]) -> str:
    """List the first few names of a mapping."""
    shown = [repr(name) for name in list(names)[:8]]
    return ", ".join([*shown, "..."] if len(names) > len(shown) else shown)
