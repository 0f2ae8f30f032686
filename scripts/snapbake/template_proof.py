"""Finding the plain strings of a chat template, and proving that they do what it does."""

from collections.abc import Iterable
from typing import Final

from snapbake.calibration import ChatTokenizer
from snapbake.errors import SnapbakeError
from snapbake.prompt_template import PromptTemplate
from snapbake.records import Message, UnusableRecordError

_MARK: Final = "snapbakeMark"
_PROBES: Final = (
    "How much is 20 + 24, in words?",
    "two\nlines\n\nand a half",
    "\"quotes\" and 'apostrophes', back\\slash, 100 %, $HOME, `code`",
    "{{ messages }} {% if x %} {# no comment #} <b>&amp;</b>",
    "<|im_end|> </s> [INST] are not mine to write",
    "naïve café, 你好世界, مرحبا, 🙂👩‍👩‍👧",
    "\tx  y",
)
# What a template may strip from both ends.
_SPACED: Final = "  a word \n"


def find_prompt_template(tokenizer: ChatTokenizer, stop: Iterable[int]) -> PromptTemplate:
    """Return a checkpoint's template for one question, proven by rendering.

    `stop` are the end tokens that the checkpoint's configuration names; the token with which the
    template ends an answer is added when it is a special one. Raises SnapbakeError when the
    template does more to a question than to put text around it.
    """
    from tokenizers import Tokenizer

    def rendered(text: str, answer: str | None = None) -> str:
        turns = [Message("user", text)]
        if answer is not None:
            turns.append(Message("assistant", answer))
        try:
            return tokenizer.render(turns, add_generation_prompt=answer is None)
        except UnusableRecordError as error:
            raise SnapbakeError(
                f"a single question {error} of {tokenizer.checkpoint}; mend its chat_template.jinja"
            ) from error

    marked = rendered(_MARK)
    if marked.count(_MARK) != 1:
        raise SnapbakeError(
            f"the chat template of {tokenizer.checkpoint} writes a question {marked.count(_MARK)} "
            "times, which no plain prefix and suffix can do; use a template that writes it once"
        )
    prefix, _, suffix = marked.partition(_MARK)
    strip = rendered(_SPACED) == prefix + _SPACED.strip() + suffix
    found = PromptTemplate(prefix, suffix, strip, (), ())
    for text in (*_PROBES, _SPACED):
        if rendered(text) != found.render(text):
            raise SnapbakeError(
                f"the chat template of {tokenizer.checkpoint} changes the question {text!r}, which "
                "no plain prefix and suffix can do; use a template that writes it as it is"
            )

    vocabulary = Tokenizer.from_file(str(tokenizer.checkpoint / "tokenizer.json"))
    special = {
        number for number, token in vocabulary.get_added_tokens_decoder().items() if token.special
    }
    _, _, ending = rendered("a question", _MARK).rpartition(_MARK)
    ending_ids = tokenizer.encode(ending)
    ids = {*stop, *(number for number in ending_ids[:1] if number in special)}
    if not ids:
        raise SnapbakeError(
            f"nothing ends an answer of {tokenizer.checkpoint}: neither config.json nor "
            "generation_config.json has an eos_token_id; add the one of the base model"
        )
    ordered = tuple(sorted(ids))
    texts = tuple(vocabulary.id_to_token(number) or "" for number in ordered)
    return PromptTemplate(prefix, suffix, strip, texts, ordered)
