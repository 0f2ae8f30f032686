"""A tokenizer and its chat template, used by transformers in a process with limits.

The template is a program out of a downloaded folder and the tokenizer's patterns are another, so
both get little time and memory. Without PyTorch, which transformers would import and tokenizers do
not need, the process starts in a third of the time.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

# Processor time for what takes milliseconds. Time on the clock would depend on other programs.
_RENDER_SECONDS = 2.0
# Time on the clock for all, the import of transformers included.
_SECONDS = 120.0
_MEMORY = 4 << 30  # bytes of address space

# Pieces of text whose tokens are compared before a converted tokenizer is believed.
_TEXTS = (
    "Hello world! It's 12345.67, isn't it?  Two  spaces\tand\n\nlines. ",
    "naïve café — “quoted” … ½ €100 №5",
    "中文文本，包括标点。 日本語のテキスト 한국어 텍스트",
    "Русский текст ελληνικά עברית العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧 e\u0301 \u00a0 \ufeff",
    "def f(x):\n    return x**2  # <|im_end|> <tag> [INST] </s>",
)


class TokenizerUnfitError(Exception):
    """Why transformers cannot use a tokenizer; `loaded` says whether it could load it."""

    def __init__(self, reason: str, *, loaded: bool = False) -> None:
        super().__init__(reason)
        self.loaded = loaded


@dataclass(frozen=True)
class Usage:
    """What transformers made of a conversation: its text, the text's tokens, by which class."""

    rendered: str
    ids: list[int]
    class_name: str


def use_tokenizer(folder: Path, messages: Sequence[dict[str, str]]) -> Usage:
    """Render a conversation and encode the text; raises TokenizerUnfitError.

    generation_config.json, which the tokens that end a text come from, is loaded on the way.
    """
    answer = _run("use", folder, list(messages))
    return Usage(answer["rendered"], answer["ids"], answer["class_name"])


def convert_vocabulary(folder: Path) -> str:
    """Return the tokenizer.json that transformers converts vocab.json and merges.txt to.

    Raises TokenizerUnfitError also when the two encode any of a set of texts, or a token of the
    vocabulary, differently.
    """
    return _run("convert", folder, None)


def _run(task: str, folder: Path, argument: Any) -> Any:
    """Call this module as a program and return what it answers."""
    environment = {**os.environ, "USE_TORCH": "0", "USE_TF": "0", "USE_FLAX": "0"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    environment["TOKENIZERS_PARALLELISM"] = "false"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "snapbake.tokenizer_process", task, str(folder)],
            input=json.dumps(argument),
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise TokenizerUnfitError(f"it did not end within {_SECONDS:.0f} seconds") from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise TokenizerUnfitError(f"the process was killed by {name}")
    try:
        answer = json.loads(done.stdout.rpartition("\n")[2])
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:]
        raise TokenizerUnfitError("; ".join(last) or "the process gave no answer") from None
    if "reason" in answer:
        raise TokenizerUnfitError(answer["reason"], loaded=answer["loaded"])
    return answer["result"]


def main() -> None:
    """Answer one call of `_run` on standard output, as the last line."""
    task, folder = sys.argv[1:]
    argument = json.load(sys.stdin)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or most > _MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, most))
    try:
        result = use(Path(folder), argument) if task == "use" else convert(Path(folder))
        answer: dict[str, Any] = {"result": result}
    except TokenizerUnfitError as error:
        answer = {"reason": str(error), "loaded": error.loaded}
    print("\n" + json.dumps(answer), end="", flush=True)
    # What the template left behind does not get another chance.
    os._exit(0)


def use(folder: Path, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Do what `use_tokenizer` says in this process; the result is that of `Usage`."""
    from transformers import GenerationConfig

    try:
        GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever it makes of settings that are none
        raise TokenizerUnfitError(f"generation_config.json: {_first_line(error)}") from error
    tokenizer = _load(folder)
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, _RENDER_SECONDS)
    try:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(rendered, add_special_tokens=False).input_ids
    except Exception as error:  # jinja, raise_exception of the template, unfit settings
        raise TokenizerUnfitError(_first_line(error), loaded=True) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"rendered": rendered, "ids": ids, "class_name": type(tokenizer).__name__}


def convert(folder: Path) -> str:
    """Do what `convert_vocabulary` says in this process."""
    slow, fast = _load(folder, use_fast=False), _load(folder)
    if slow.is_fast or not fast.is_fast:
        raise TokenizerUnfitError(
            f"transformers has only one form of the class {type(slow).__name__}"
        )
    vocabulary = sorted(fast.get_vocab(), key=fast.get_vocab().get)
    step = max(1, len(vocabulary) // 5000)
    pieces = [fast.convert_tokens_to_string([token]) for token in vocabulary[::step]]
    for text in (*_TEXTS, *pieces, " ".join(pieces)):
        left, right = (side(text, add_special_tokens=False).input_ids for side in (slow, fast))
        if left != right:
            raise TokenizerUnfitError(f"the converted one encodes {text[:40]!r} differently")
    return fast.backend_tokenizer.to_str()


def _load(folder: Path, *, use_fast: bool = True) -> Any:
    from transformers import AutoTokenizer

    try:
        # Code from the folder is never run, and nothing is looked up on the network.
        return AutoTokenizer.from_pretrained(
            folder, use_fast=use_fast, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # whatever a class makes of an unfit folder
        raise TokenizerUnfitError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"it does not end within {_RENDER_SECONDS:.0f} seconds")


if __name__ == "__main__":
    main()
