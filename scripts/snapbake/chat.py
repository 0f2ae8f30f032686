"""Asking a built model on this machine, with Genie on the HTP emulator."""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, read_spec
from snapbake.files import read_json, require_file, write_json
from snapbake.genie_config import EXTENSIONS_FILE, htp_extensions
from snapbake.genie_gate import open_genie
from snapbake.prompt_template import PromptTemplate, read_prompt_template

_GRAPHS: Final = ("prefill", "decode")


@dataclass(frozen=True)
class BuiltModel:
    """A model built for a chip: what Genie needs of it here, and where its checkpoint is.

    The emulator cannot load `context.bin`, so the binaries are those of one graph each.
    """

    spec: DecoderSpec
    context: int
    soc_model: int
    arch: int
    binaries: tuple[Path, ...]
    checkpoint: Path
    template: PromptTemplate


def find_built_model(place: Path) -> BuiltModel:
    """Return the model of a bundle or of the folder around it, results/{model}/.../{soc}.

    Raises SnapbakeError with what is missing; a bundle alone has no binaries that run here.
    """
    folder = place.resolve()
    if folder.name in ("bundle", "bundle-ort"):
        folder = folder.parent
    description = folder / "context.json"
    if not description.is_file():
        raise SnapbakeError(
            f"{place} is no build: there is no {description}; what ships cannot run on a PC, so "
            "give the folder results/MODEL/cCONTEXT/RECIPE/SOC of the build, or the bundle in it"
        )
    content = read_json(description)
    model = folder.parents[2]
    binaries = tuple(folder / f"{graph}.bin" for graph in _GRAPHS)
    template = model / "chat" / "prompt_template.json"
    for path in (*binaries, template, model / "checkpoint" / "tokenizer.json"):
        require_file(path)
    masks = [
        tensor["shape"][-1]
        for tensor in content["graphs"]["decode"]["inputs"]
        if tensor["name"] == "attention_mask"
    ]
    return BuiltModel(
        read_spec(read_json(model / "checkpoint" / "config.json")),
        masks[0],
        content["soc_model"],
        content["arch"],
        binaries,
        model / "checkpoint",
        read_prompt_template(template),
    )


def chat(model: BuiltModel, question: str, count: int) -> None:
    """Print the answer of up to `count` tokens while it is made, and then its speed."""
    with tempfile.TemporaryDirectory(prefix="snapbake.") as folder:
        extensions = Path(folder) / EXTENSIONS_FILE
        write_json(extensions, htp_extensions(model.soc_model, model.arch))
        with open_genie(
            model.spec,
            model.context,
            model.template,
            model.binaries,
            model.checkpoint / "tokenizer.json",
            extensions,
        ) as genie:
            genie.load()
            print("Genie on the HTP emulator, seconds a word:", file=sys.stderr, flush=True)
            start = time.monotonic()
            genie.answer_text(model.template.render(question), count, _tell)
            print(flush=True)
    print(
        f"{time.monotonic() - start:.0f} s, which is the emulator's speed and says nothing about "
        "the chip's",
        file=sys.stderr,
    )


def _tell(piece: str) -> None:
    print(piece, end="", flush=True)


def chat_with_reference(model: BuiltModel, question: str, count: int, threads: int) -> None:
    """Print what the float model answers to the same prompt, in PyTorch."""
    from tokenizers import Tokenizer

    from snapbake.torch_reference import TorchModel

    tokenizer = Tokenizer.from_file(str(model.checkpoint / "tokenizer.json"))
    ids = tokenizer.encode(model.template.render(question), add_special_tokens=False).ids
    print("The float model in PyTorch:", file=sys.stderr, flush=True)
    answer, _ = TorchModel(model.checkpoint, threads).generate(ids, count, model.template.stop_ids)
    print(tokenizer.decode(answer, skip_special_tokens=True))
