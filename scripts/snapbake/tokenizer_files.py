"""The tokenizer and the chat template of a Hugging Face folder, in the form of transformers 4."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json
from snapbake.folder_json import read_object
from snapbake.tokenizer_process import TokenizerUnfitError, convert_vocabulary, use_tokenizer

# Classes that only transformers 5 knows; both stand for "what tokenizer.json says".
_NEWER_CLASSES = ("TokenizersBackend", "PythonBackend")
_SPECIAL_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
)

# What slow tokenizers keep their vocabulary in, and what else shapes how they are read.
_VOCABULARY = ("vocab.json", "merges.txt")
_BESIDE_VOCABULARY = ("added_tokens.json", "special_tokens_map.json")

# Scripts, digits, spaces and signs that tokenizers treat apart.
_PROBE = (
    {"role": "user", "content": "How much is 20 + 24, in words? 二十加二十四？ Сколько?"},
    {"role": "assistant", "content": "Forty-four.\n\n\tIt isn't 43,   isn't it… naïve? 🙂"},
)


@dataclass(frozen=True)
class TokenizerFiles:
    """What goes into the normalised folder, and what was changed to get there."""

    tokenizer: bytes
    config: dict[str, Any]
    chat_template: str
    token_ids: Mapping[str, int]
    notes: tuple[str, ...]

    def special_id(self, key: str) -> int | None:
        """Return the id of a special token such as `eos_token`, None when there is none."""
        token = self.config.get(key)
        content = token.get("content") if isinstance(token, dict) else token
        return self.token_ids.get(content) if isinstance(content, str) else None


def read_tokenizer(folder: Path, vocab_size: int) -> TokenizerFiles:
    """Read and judge the tokenizer files of a folder; `vocab_size` is the embedding's rows.

    A folder with vocab.json and merges.txt instead of tokenizer.json gets one, by transformers'
    own conversion. Raises SnapbakeError when a file is missing or broken, when a token's id lies
    beyond the embedding, and when there is no chat template.
    """
    path = folder / "tokenizer.json"
    config_path = folder / "tokenizer_config.json"
    slow = not path.exists() and all((folder / name).is_file() for name in _VOCABULARY)
    for needed in (path, config_path):
        if not needed.is_file() and not (slow and needed is path):
            raise SnapbakeError(_missing(needed.name, folder))
    config, notes = _normalise_config(read_object(config_path), folder)
    template, template_notes = _chat_template(config, folder)
    config.pop("chat_template", None)
    if slow:
        content = _converted(folder, config)
        path = folder / _VOCABULARY[0]
        notes.append("tokenizer.json: made from vocab.json and merges.txt, and compared with them")
    else:
        read_json(path)  # names the place of a syntax error, which the library does not
        content = path.read_bytes()
    token_ids = _token_ids(content, path)
    last = max(token_ids, key=lambda token: token_ids[token], default=None)
    if last is None:
        raise SnapbakeError(f"{path} has no tokens; copy the tokenizer of the base model again")
    if token_ids[last] >= vocab_size:
        raise SnapbakeError(
            f"{path}: token {last!r} has id {token_ids[last]} and the embedding ends at "
            f"{vocab_size - 1}; the tokenizer is of another model, or tokens were added without "
            "resize_vocab"
        )
    return TokenizerFiles(content, config, template, token_ids, (*notes, *template_notes))


def write_tokenizer(files: TokenizerFiles, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    (folder / "tokenizer.json").write_bytes(files.tokenizer)
    write_json(folder / "tokenizer_config.json", files.config)
    (folder / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")


def prove_tokenizer(folder: Path, origin: Path) -> None:
    """Use the tokenizer of a normalised folder as every later stage does, and render a chat.

    Raises SnapbakeError, naming `origin`, when transformers cannot load it, when it encodes other
    than tokenizer.json does, and when the template fails, does not end, or drops what was said.
    """
    from tokenizers import Tokenizer

    try:
        used = use_tokenizer(folder, _PROBE)
    except TokenizerUnfitError as error:
        if error.loaded:
            raise SnapbakeError(
                f"the chat template of {origin} cannot be rendered and encoded ({error}); copy "
                "template and tokenizer files of the base model"
            ) from error
        raise SnapbakeError(
            f"transformers cannot load the tokenizer and the settings of {origin} ({error}); copy "
            "the tokenizer files and generation_config.json of the base model"
        ) from error
    dropped = [message["content"] for message in _PROBE if message["content"] not in used.rendered]
    if dropped:
        raise SnapbakeError(
            f"the chat template of {origin} drops messages: of a question and an answer it renders "
            f"{used.rendered[:80]!r}; copy the one of the base model"
        )
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(
        used.rendered, add_special_tokens=False
    )
    if used.ids != expected.ids:
        raise SnapbakeError(
            f"{origin / 'tokenizer_config.json'} makes transformers encode otherwise than "
            f"tokenizer.json says (tokenizer_class {used.class_name}), and a phone reads "
            "tokenizer.json; copy both files of the base model"
        )


def _missing(name: str, folder: Path) -> str:
    if name == "tokenizer.json" and (folder / "tokenizer.model").is_file():
        return (
            f"{folder} has its tokenizer in tokenizer.model (SentencePiece) only; load it with "
            "transformers where sentencepiece is installed and save it again, which writes "
            "tokenizer.json"
        )
    return (
        f"{folder} has no {name}; copy the tokenizer files of the base model into it "
        "(LLaMA-Factory only warns when it cannot save them)"
    )


def _converted(folder: Path, config: Mapping[str, Any]) -> bytes:
    """Return the tokenizer.json of a folder that has a slow tokenizer's files."""
    read_object(folder / _VOCABULARY[0])
    with tempfile.TemporaryDirectory(prefix="snapbake.") as name:
        staging = Path(name)
        for file in (*_VOCABULARY, *_BESIDE_VOCABULARY, "config.json"):
            if (folder / file).is_file():
                shutil.copyfile(folder / file, staging / file)
        write_json(staging / "tokenizer_config.json", config)
        try:
            return convert_vocabulary(staging).encode()
        except TokenizerUnfitError as error:
            raise SnapbakeError(
                f"{folder} has no tokenizer.json, and its {' and '.join(_VOCABULARY)} cannot be "
                f"converted to one ({error}); copy tokenizer.json of the base model"
            ) from error


def _token_ids(content: bytes, path: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise SnapbakeError(
            f"{path} cannot be used as a tokenizer ({error}); copy it from the base model"
        ) from error
    return tokenizer.get_vocab(with_added_tokens=True)


def _normalise_config(config: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    if config.get("auto_map"):
        raise SnapbakeError(
            f"{folder / 'tokenizer_config.json'}: auto_map asks for code that comes with the "
            "tokenizer, which is not run, and a phone could not; if tokenizer.json says the same, "
            "remove the key"
        )
    config = dict(config)
    notes = []
    if config.get("tokenizer_class") in _NEWER_CLASSES:
        notes.append(
            f"tokenizer_config.json: tokenizer_class {config['tokenizer_class']} of transformers "
            "5 became PreTrainedTokenizerFast"
        )
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config.pop("backend", None)
    extra = config.get("extra_special_tokens")
    if isinstance(extra, list):
        del config["extra_special_tokens"]
        known = config.get("additional_special_tokens")
        known = known if isinstance(known, list) else []
        config["additional_special_tokens"] = known + [item for item in extra if item not in known]
        notes.append(
            "tokenizer_config.json: the extra_special_tokens list of transformers 5 became "
            "additional_special_tokens"
        )
    special = folder / "special_tokens_map.json"
    if special.is_file() and "added_tokens_decoder" not in config:
        # transformers 4 lets this file win in exactly this case.
        entries = read_object(special)
        changed = {key: entries[key] for key in _SPECIAL_KEYS if key in entries}
        if any(config.get(key) != value for key, value in changed.items()):
            notes.append("tokenizer_config.json: took the tokens of special_tokens_map.json")
        config |= changed
    return config, notes


def _chat_template(config: Mapping[str, Any], folder: Path) -> tuple[str, list[str]]:
    path = folder / "chat_template.jinja"
    template = config.get("chat_template")
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise SnapbakeError(f"{path} is not UTF-8 text; save it as UTF-8") from error
        notes = []
        if template is not None and template != text:
            notes.append(
                "took chat_template.jinja, which differs from the template in tokenizer_config.json"
            )
        template = text
    else:
        notes = ["moved the chat template from tokenizer_config.json to chat_template.jinja"]
        if isinstance(template, list):
            template = _default_of(template, folder)
            notes.append("took the chat template named 'default' of several")
    if not isinstance(template, str) or not template.strip():
        raise SnapbakeError(
            f"{folder} has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), which calibration and verification need; copy the one of the "
            "base model"
        )
    return template, notes


def _default_of(templates: list[Any], folder: Path) -> Any:
    named = {item.get("name"): item.get("template") for item in templates if isinstance(item, dict)}
    if "default" not in named:
        raise SnapbakeError(
            f"{folder / 'tokenizer_config.json'} has several chat templates "
            f"({json.dumps(sorted(map(str, named)))}) and none named 'default'; save the one that "
            "the model was trained with as chat_template.jinja"
        )
    return named["default"]
