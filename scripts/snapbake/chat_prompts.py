"""The chat prompts of the Genie gate and what PyTorch in fp32 answers to them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json


@dataclass(frozen=True)
class ChatPrompt:
    """A question, rendered and tokenised, and the float model's greedy answer.

    `answer_text` is the tokenizer's text of the tokens `answer`, special tokens included.
    `margins` says by how many nats the float model prefers each token to its next best.
    """

    question: str
    rendered: str
    ids: tuple[int, ...]
    answer: tuple[int, ...]
    answer_text: str
    margins: tuple[float, ...]


def read_chat_prompts(path: Path) -> list[ChatPrompt]:
    """Read what `prepare_chat` wrote."""
    return [
        ChatPrompt(
            entry["question"],
            entry["rendered"],
            tuple(entry["ids"]),
            tuple(entry["answer"]),
            entry["answer_text"],
            tuple(entry["margins"]),
        )
        for entry in read_json(path)["prompts"]
    ]


def write_chat_prompts(path: Path, prompts: Sequence[ChatPrompt]) -> None:
    """Write prompts as JSON."""
    write_json(path, {"prompts": [asdict(prompt) for prompt in prompts]})


def require_room(prompt: ChatPrompt, count: int, tokens: int, context: int) -> None:
    """Raise SnapbakeError unless Genie can answer a prompt with `count` tokens.

    It reads `tokens` at a time, and its last whole chunk must begin within the `context`.
    """
    longest = min(context - tokens, context - count)
    if len(prompt.ids) > longest:
        raise SnapbakeError(
            f"the prompt {prompt.question!r} has {len(prompt.ids)} tokens with its template, and "
            f"Genie takes at most {longest} when {count} tokens are asked for in a context of "
            f"{context} with chunks of {tokens}; shorten it (genie.prompts) or lengthen the context"
        )
