"""Preparing the chat prompts of the Genie gate: rendered, tokenised, answered by PyTorch."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from snapbake.calibration import ChatTokenizer
from snapbake.chat_prompts import ChatPrompt, write_chat_prompts
from snapbake.prompt_template import write_prompt_template
from snapbake.reference import stop_tokens
from snapbake.template_proof import find_prompt_template
from snapbake.torch_reference import TorchModel


def prepare_chat(
    checkpoint: Path,
    questions: Sequence[str],
    tokens: int,
    threads: int,
    template_output: Path,
    prompts_output: Path,
) -> None:
    """Write a checkpoint's prompt template, and its answers of up to `tokens` tokens."""
    tokenizer = ChatTokenizer(checkpoint)
    template = find_prompt_template(tokenizer, stop_tokens(checkpoint))
    vocabulary = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    model = TorchModel(checkpoint, threads)
    prompts = []
    for question in questions:
        rendered = template.render(question)
        ids = tokenizer.encode(rendered)
        print(f"PyTorch answers {question!r}", file=sys.stderr)
        answer, margins = model.generate(ids, tokens, template.stop_ids)
        text = vocabulary.decode(answer, skip_special_tokens=False)
        prompts.append(
            ChatPrompt(question, rendered, tuple(ids), tuple(answer), text, tuple(margins))
        )
    write_chat_prompts(prompts_output, prompts)
    write_prompt_template(template_output, template)
