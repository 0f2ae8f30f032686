"""The Genie gate: the runtime of the phone answers chat prompts on the emulator, and is judged.

Genie loads the proven binaries with the configuration and the tokenizer of the bundle. What it
answers greedily is compared with the loop of decoding.py over the same graphs in onnxruntime on
the CPU. The emulator rounds otherwise than the CPU, so where two tokens are nearly equally good
either may come. How near is measured: by how much the emulator moved the distance between the
CPU's two best tokens on the held-out text. A difference above that fails.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapbake.chat_prompts import ChatPrompt, read_chat_prompts
from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Decoder, GraphPair, Run, read_pair
from snapbake.errors import SnapbakeError
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
    outputs: Path,
    cpu_outputs: Path,
    tokens: int,
    context: int,
    soc_model: int,
    arch: int,
    count: int,
    threads: int,
    output: Path,
) -> None:
    """Let Genie answer the prompts with up to `count` tokens and write genie.json.

    `binaries` and `graphs` are those of "prefill" and "decode"; `outputs` and `cpu_outputs` are
    what the emulator and the CPU made of the held-out text (.npz). A difference is written down
    and is no failure here; `require_genie` fails on it. Raises SnapbakeError where Genie would
    refuse the binaries.
    """
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, tokens, context, encodings)
    plain, asked = read_prompt_template(template), read_chat_prompts(prompts)
    for prompt in asked:
        _require_room(prompt, count, tokens, context)
    runner = CpuRunner(graphs, threads)
    limit = near_tie_limit(outputs, cpu_outputs)
    extensions = output.parent / EXTENSIONS_FILE
    write_json(extensions, htp_extensions(soc_model, arch))
    with open_genie(
        spec, context, plain, list(binaries.values()), checkpoint / "tokenizer.json", extensions
    ) as genie:
        seconds = genie.load()
        print(f"Genie loaded the binaries in {seconds:.1f} s", file=sys.stderr, flush=True)
        answers = [_ask(genie, pair, runner.run, plain, prompt, count) for prompt in asked]
    for answer in answers:
        answer["explained"] = all(each["margin"] <= limit for each in answer["differences"])
    write_json(
        output,
        {
            "passed": all(
                answer["explained"] and answer["same_prompt"] and answer["same_text"]
                for answer in answers
            ),
            "near_tie_limit": limit,
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


def near_tie_limit(outputs: Path, cpu_outputs: Path) -> float:
    """Return the most by which the emulator moved the distance of the CPU's two best tokens.

    Over all tokens of the readings of both files, in nats.
    """
    moved = [0.0]
    with np.load(outputs) as emulator, np.load(cpu_outputs) as cpu:
        for name in cpu.files:
            if name.endswith("_logits"):
                moved.append(float(_moved_margins(emulator[name], cpu[name]).max()))
    return max(moved)


def _moved_margins(emulator: NDArray[np.float32], cpu: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return, a row of logits [n, V], how far the distance of the CPU's two best tokens moved."""
    best = np.argpartition(cpu, -2, axis=-1)[:, -2:]
    theirs, ours = (np.take_along_axis(logits, best, axis=-1) for logits in (emulator, cpu))
    return np.abs((theirs[:, 0] - theirs[:, 1]) - (ours[:, 0] - ours[:, 1]))


def _require_room(prompt: ChatPrompt, count: int, tokens: int, context: int) -> None:
    longest = min(context - tokens, context - count)
    if len(prompt.ids) > longest:
        raise SnapbakeError(
            f"the prompt {prompt.question!r} has {len(prompt.ids)} tokens with its template, and "
            f"Genie takes at most {longest} when {count} tokens are asked for in a context of "
            f"{context} with chunks of {tokens}; shorten it (genie.prompts) or lengthen the context"
        )


def _ask(
    genie: Genie,
    pair: GraphPair,
    run: Run,
    template: PromptTemplate,
    prompt: ChatPrompt,
    count: int,
) -> dict[str, Any]:
    """Let the CPU and Genie answer a prompt and describe how they compare."""
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
        "float": {"tokens": prompt.answer, "text": _text(genie, prompt.answer, template)[0]},
        "agreeing_with_cpu": agreeing(expected, answer),
        "agreeing_with_float": agreeing(prompt.answer, answer),
        "differences": [
            asdict(each)
            for each in _differences(pair, run, prompt.ids, answer, count, template.stop_ids)
        ],
        "same_prompt": genie.encode(prompt.rendered) == list(prompt.ids),
        "same_text": text.startswith(_text(genie, answer, template)[0])
        and prompt.answer_text.startswith(_text(genie, prompt.answer, template)[0]),
    }


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


def require_genie(result: Path) -> None:
    """Raise unless the gate's result says that Genie answers as the CPU does."""
    content = read_json(result)
    if content["passed"]:
        return
    for answer in content["prompts"]:
        question = answer["question"]
        if not answer["same_prompt"]:
            reason = f"Genie makes other tokens of the prompt {question!r} than transformers"
        elif not answer["explained"]:
            worst = max(answer["differences"], key=lambda each: each["margin"])
            reason = (
                f"Genie answers {question!r} otherwise than the CPU at token "
                f"{worst['position'] + 1}, where the CPU prefers its own by {worst['margin']:.3g} "
                f"nats, above the near-tie limit of {content['near_tie_limit']:.3g}"
            )
        elif not answer["same_text"]:
            reason = f"Genie makes another text of the tokens that answer {question!r}"
        else:
            continue
        raise SnapbakeError(
            f"{result}: {reason}; the phone would answer so too, see the texts there"
        )
