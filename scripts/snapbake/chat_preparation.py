"""Preparing the chat prompts of the Genie gate: rendered, tokenised, answered by PyTorch."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from snapbake.calibration import ChatTokenizer
from snapbake.chat_prompts import ChatPrompt, require_room, write_chat_prompts
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.genie_positions import positional_encoding
from snapbake.prompt_template import write_prompt_template
from snapbake.reference import stop_tokens
from snapbake.template_proof import find_prompt_template
from snapbake.torch_reference import TorchModel


def prepare_chat(
    checkpoint: Path,
    questions: Sequence[str],
    count: int,
    context: int,
    chunk: int,
    threads: int,
    template_output: Path,
    prompts_output: Path,
) -> None:
    """Write a checkpoint's prompt template, and its answers of up to `count` tokens.

    Raises SnapbakeError, before anything is answered, for a model that Genie cannot run and for a
    question that does not fit into a `context` of so many tokens, the shortest that is built;
    `chunk` is how many tokens are read at a time.
    """
    spec = read_spec(read_json(checkpoint / "config.json"))
    positional_encoding(spec, context)
    tokenizer = ChatTokenizer(checkpoint)
    template = find_prompt_template(tokenizer, stop_tokens(checkpoint))
    vocabulary = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    asked = []
    for question in questions:
        rendered = template.render(question)
        asked.append(ChatPrompt(question, rendered, tuple(tokenizer.encode(rendered)), (), "", ()))
        require_room(asked[-1], count, chunk, context)
    model = TorchModel(checkpoint, threads)
    prompts = []
    for prompt in asked:
        print(f"PyTorch answers {prompt.question!r}", file=sys.stderr)
        answer, margins = model.generate(list(prompt.ids), count, template.stop_ids)
        text = vocabulary.decode(answer, skip_special_tokens=False)
        prompts.append(
            replace(prompt, answer=tuple(answer), answer_text=text, margins=tuple(margins))
        )
    write_chat_prompts(prompts_output, prompts)
    write_prompt_template(template_output, template)
