"""The Genie gate: the runtime of the phone answers chat prompts on the emulator, beside the CPU.

Genie loads the proven binaries with the configuration and the tokenizer of the bundle. What it
answers greedily is compared with the loop of decoding.py over the same graphs in onnxruntime on
the CPU. What differs is written down with the CPU's margin; genie_verdict.py judges it.
"""

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snapbake.chat_prompts import ChatPrompt, read_chat_prompts, require_room
from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Decoder, GraphPair, Run, read_pair
from snapbake.families import DecoderSpec, read_spec
from snapbake.files import read_json, write_json
from snapbake.genie import Genie
from snapbake.genie_config import EXTENSIONS_FILE, genie_config, htp_extensions, require_fit
from snapbake.metrics import agreeing
from snapbake.prompt_template import PromptTemplate, read_prompt_template
from snapbake.qnn_system import read_context_binary


@dataclass(frozen=True)
class Difference:
    """A token of Genie's that the CPU would not have chosen after the same text.

    `margin` is by how many nats the CPU prefers its own.
    """

    position: int
    genie: int
    cpu: int
    margin: float


def run_genie(
    binaries: Mapping[str, Path],
    graphs: Mapping[str, Path],
    checkpoint: Path,
    encodings: Path,
    template: Path,
    prompts: Path,
    tokens: int,
    context: int,
    soc_model: int,
    arch: int,
    count: int,
    threads: int,
    output: Path,
) -> None:
    """Let Genie answer the prompts with up to `count` tokens and write genie.json.

    `binaries` and `graphs` are those of "prefill" and "decode". Raises SnapbakeError where Genie
    would refuse the binaries or a prompt.
    """
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, tokens, context, encodings)
    plain, asked = read_prompt_template(template), read_chat_prompts(prompts)
    for prompt in asked:
        require_room(prompt, count, tokens, context)
    runner = CpuRunner(graphs, threads)
    with tempfile.TemporaryDirectory(prefix="snapbake.") as folder:
        extensions = Path(folder) / EXTENSIONS_FILE
        write_json(extensions, htp_extensions(soc_model, arch))
        with open_genie(
            spec, context, plain, list(binaries.values()), checkpoint / "tokenizer.json", extensions
        ) as genie:
            seconds = genie.load()
            print(f"Genie loaded the binaries in {seconds:.1f} s", file=sys.stderr, flush=True)
            answers = [ask(genie, pair, runner.run, plain, prompt, count) for prompt in asked]
    write_json(
        output,
        {
            "tokens": count,
            "load_seconds": round(seconds, 2),
            "prompts": answers,
        },
    )


def open_genie(
    spec: DecoderSpec,
    context: int,
    template: PromptTemplate,
    binaries: Sequence[Path],
    tokenizer: Path,
    extensions: Path,
) -> Genie:
    """Return Genie over binaries that the emulator can load, configured as in the bundle."""
    names = [str(path.resolve()) for path in binaries]
    config = genie_config(
        spec,
        context,
        template.stop_ids,
        names,
        str(tokenizer.resolve()),
        str(extensions.resolve()),
        poll=False,
    )
    require_fit(config, {name: read_context_binary(Path(name)) for name in names}, spec)
    return Genie(config, extensions.parent)


def ask(
    genie: Genie,
    pair: GraphPair,
    run: Run,
    template: PromptTemplate,
    prompt: ChatPrompt,
    count: int,
) -> dict[str, Any]:
    """Let the CPU and Genie answer a prompt, and describe how they compare as genie.json does.

    Genie is asked in text. Where its text is the CPU's, so are its tokens; otherwise it is asked
    again, for the tokens. `template` has the tokens that are to end an answer.
    """
    expected = Decoder(pair, run).generate(list(prompt.ids), count, template.stop_ids)
    start = time.monotonic()
    # As text, the way of an application: Genie's own tokenizer, its detokenizer, its stop tokens.
    text = genie.answer_text(prompt.rendered, count)
    seconds = time.monotonic() - start
    print(f"Genie answers {prompt.question!r}: {text!r}", file=sys.stderr, flush=True)
    answer = expected
    cpu_text, whole = _text(genie, expected, template)
    if text != cpu_text or not whole:
        # Only the tokens tell where they part, or what comes after half a character.
        answer = genie.answer_tokens(prompt.ids, count)
    return {
        "question": prompt.question,
        "prompt_tokens": len(prompt.ids),
        "seconds": round(seconds, 1),
        "genie": {"tokens": answer, "text": text},
        "cpu": {"tokens": expected, "text": cpu_text},
        "float": {
            "tokens": prompt.answer,
            "margins": prompt.margins,
            "text": _text(genie, prompt.answer, template)[0],
        },
        "agreeing_with_cpu": agreeing(expected, answer),
        "agreeing_with_float": agreeing(prompt.answer, answer),
        "differences": [
            asdict(each)
            for each in _differences(pair, run, prompt.ids, answer, count, template.stop_ids)
        ],
        "same_prompt": genie.encode(prompt.rendered) == list(prompt.ids),
        "same_text": _is_text_of(text, answer, genie, template)
        and prompt.answer_text.startswith(_text(genie, prompt.answer, template)[0]),
        "stopped": not any(token in template.stop_ids for token in answer[:-1]),
    }


def _is_text_of(text: str, tokens: Sequence[int], genie: Genie, template: PromptTemplate) -> bool:
    """Tell whether `text` is what tokens say; a character that they only begin may be lacking."""
    expected, whole = _text(genie, tokens, template)
    return text == expected if whole else text.startswith(expected)


def _text(genie: Genie, tokens: Sequence[int], template: PromptTemplate) -> tuple[str, bool]:
    """Return the text of an answer without the token that ended it, and whether that is all.

    Tokens can end within a character; Genie's tokenizer then gives no text at all, so those at
    the end that make up no whole character are left out.
    """
    shown = list(tokens[:-1] if tokens and tokens[-1] in template.stop_ids else tokens)
    for length in range(len(shown), 0, -1):
        if text := genie.decode(shown[:length]):
            return text, length == len(shown)
    return "", not shown


def _differences(
    pair: GraphPair,
    run: Run,
    prompt: Sequence[int],
    answer: Sequence[int],
    count: int,
    stop: Sequence[int],
) -> list[Difference]:
    """Return where the CPU, reading Genie's answer token by token, prefers another token.

    An answer of less than `count` tokens ends with a stop token, whether or not it is shown.
    """
    decoder = Decoder(pair, run)
    *_, logits = decoder.prefill(list(prompt))
    found = []
    for position in range(min(count, len(answer) + 1)):
        if position:
            if answer[position - 1] in stop:
                break
            logits = decoder.step("decode", [answer[position - 1]])
        row = logits[-1]
        chosen = answer[position] if position < len(answer) else max(stop, key=row.__getitem__)
        best = int(row.argmax())
        if best != chosen:
            found.append(Difference(position, chosen, best, float(row[best] - row[chosen])))
    return found
