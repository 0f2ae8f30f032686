"""The folder that goes to the phone, and the archive of it."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any, Final

from snapbake import bundle_manifest
from snapbake.bundle_android import android_files, write_android
from snapbake.bundle_check import verify_bundle
from snapbake.bundle_files import copy_file, write_text
from snapbake.bundle_manifest import describe_file
from snapbake.decoding import read_pair
from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.files import read_json, require_disk_space, write_json
from snapbake.genie_config import genie_config, htp_extensions
from snapbake.prompt_template import PromptTemplate, read_prompt_template

_FIGURES: Final = (
    "tokens",
    "kl_divergence",
    "top1_agreement",
    "logits_cosine",
    "perplexity",
    "perplexity_float",
    "perplexity_increase",
)
# What is in a bundle besides its manifest and android/.
_FILES: Final = (
    bundle_manifest.BINARY,
    bundle_manifest.CONFIG,
    bundle_manifest.EXTENSIONS,
    bundle_manifest.TOKENIZER,
    bundle_manifest.TEMPLATE,
    "run_on_phone.sh",
    "README.md",
    "LICENSES",
)
_PLACE: Final = re.compile(r"@(\w+)@")


@dataclass(frozen=True)
class BundleParts:
    """The files that a bundle is made of.

    `binary` and `description` are context.bin and context.json, `verdict` and `genie` what the
    emulator showed (verify.json, genie.json), `summary` is checkpoint.json, `calibration` the
    manifest of the records, `requirements` the pinned packages. `android` is the folder of the
    sources for the phone, `programs` that of what an NDK built of them, None without an NDK.
    """

    binary: Path
    description: Path
    encodings: Path
    checkpoint: Path
    summary: Path
    template: Path
    calibration: Path
    verdict: Path
    genie: Path
    requirements: Path
    android: Path
    programs: Path | None


def make_bundle(
    parts: BundleParts,
    model: str,
    recipe: str,
    context: int,
    chunk: int,
    part: str,
    chip: str,
    settings: Mapping[str, Any],
    readme: Path,
    script: Path,
    output: Path,
) -> None:
    """Write the bundle's files into the folder `output`, the manifest last, and check them.

    `part` and `chip` are the chip's name of the maker and as a person knows it; `settings` is the
    configuration that shaped the build; `readme` and `script` are the templates of the README and
    of run_on_phone.sh, with @names@ for what is filled in. Equal parts give equal bytes.
    """
    description, summary = read_json(parts.description), _without_folders(read_json(parts.summary))
    genie, verdict = read_json(parts.genie), read_json(parts.verdict)
    calibration = read_json(parts.calibration)
    for path, content in (
        (parts.description, description),
        (parts.verdict, verdict),
        (parts.calibration, calibration),
    ):
        _require_same_weights(path, content, parts.summary, summary)
    spec = read_spec(read_json(parts.checkpoint / "config.json"))
    template = read_prompt_template(parts.template)
    manifest = output / bundle_manifest.NAME
    manifest.unlink(missing_ok=True)  # until it is written again, this is no bundle
    output.mkdir(parents=True, exist_ok=True)
    require_disk_space(output, parts.binary.stat().st_size + (64 << 20))
    copy_file(parts.binary, output / bundle_manifest.BINARY)
    copy_file(parts.checkpoint / "tokenizer.json", output / bundle_manifest.TOKENIZER)
    copy_file(parts.template, output / bundle_manifest.TEMPLATE)
    write_json(
        output / bundle_manifest.CONFIG,
        genie_config(spec, context, template.stop_ids, [bundle_manifest.BINARY]),
    )
    write_json(
        output / bundle_manifest.EXTENSIONS,
        htp_extensions(description["soc_model"], description["arch"]),
    )
    android = write_android(
        parts.android,
        parts.programs,
        read_pair(spec, chunk, context, parts.encodings),
        template.stop_ids,
        output,
    )
    words = _words(description, template, model, recipe, context, chunk, part, chip)
    write_text(output / "run_on_phone.sh", fill(script, words), executable=True)
    question = genie["prompts"][0]["question"]
    page = {
        **words,
        "model": model,
        "title": f"A language model of the family {spec.family}, {summary['parameters']:,} "
        "parameters",
        "source": f"`{summary['source']['location']}`",
        "question": shlex.quote(question.strip() if template.strip else question),
        "programs": _programs_row(android),
        "answers": _answers(genie),
        "figures": _figures_table(verdict),
    }
    write_text(output / "README.md", fill(readme, page))
    write_text(output / "LICENSES", _licences(summary, description, android))
    content = {
        "format": bundle_manifest.FORMAT,
        "model": model,
        "recipe": recipe,
        "context": context,
        "prefill_chunk": chunk,
        "target": {
            "soc": description["soc"],
            "part": part,
            "chip": chip,
            **{key: description[key] for key in ("soc_model", "arch", "vtcm_mb")},
        },
        "qairt": {
            "build": description["qairt_build"],
            "core_api": description["qnn_core_api"],
            "htp_backend_api": description["htp_backend_api"],
            "blob_version": description["blob_version"],
        },
        "android": android,
        "graphs": description["graphs"],
        "proven": description["proven"],
        "checkpoint": summary,
        "calibration": calibration,
        "made_from": description["made_from"],
        "config": {
            "content": settings,
            "sha256": sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        },
        "tools": {"python": python_version(), "packages": _packages(parts.requirements)},
        "figures": {
            where: {name: verdict[where][name] for name in _FIGURES}
            for where in ("emulator", "cpu")
        },
        "limits": verdict["checks"],
        "genie": {**genie, "verdict": verdict["genie"]},
        "files": {
            name: describe_file(output / name)
            for name in sorted([*_FILES, *android_files(parts.android, parts.programs)])
        },
    }
    write_json(manifest, content)
    verify_bundle(output, description["soc"])


def _require_same_weights(
    path: Path, content: Mapping[str, Any], summary_path: Path, summary: Mapping[str, Any]
) -> None:
    """Raise unless a file was made of the weights that checkpoint.json describes."""
    if content["weights_sha256"] != summary["sha256"]:
        raise SnapbakeError(
            f"{path} was made of weights with SHA-256 {content['weights_sha256']} and "
            f"{summary_path} describes {summary['sha256']}; build both from one model"
        )


def _without_folders(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return checkpoint.json with the last name of a local model instead of its path."""

    def shorten(origin: Mapping[str, Any]) -> dict[str, Any]:
        short = dict(origin)
        if origin.get("kind") == "folder":
            short["location"] = Path(origin["location"]).name
        if "base" in origin:
            short["base"] = shorten(origin["base"])
        return short

    return {**summary, "source": shorten(summary["source"])}


def fill(template: Path, words: Mapping[str, str]) -> str:
    """Return a template with its @names@ replaced."""

    def word(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise SnapbakeError(f"{template} has @{match[1]}@, for which there is no word; mend it")
        return words[match[1]]

    return _PLACE.sub(word, template.read_text(encoding="utf-8"))


def _words(
    description: Mapping[str, Any],
    template: PromptTemplate,
    model: str,
    recipe: str,
    context: int,
    chunk: int,
    part: str,
    chip: str,
) -> dict[str, str]:
    build = description["qairt_build"]
    release = re.match(r"v?(\d+\.\d+\.\d+)", build)
    if release is None:
        raise SnapbakeError(
            f"context.bin was compiled by {build!r}, which is no QAIRT release; compile it again"
        )
    return {
        "name": f"{model}, {recipe}, {context} tokens",
        "folder": re.sub(r"[^A-Za-z0-9.-]+", "-", f"{model}-c{context}-{recipe}"),
        "recipe": recipe,
        "context": str(context),
        "chunk": str(chunk),
        "longest": str(context - chunk),
        "part": part,
        "chip": chip,
        "soc": description["soc"],
        "soc_model": str(description["soc_model"]),
        "arch": str(description["arch"]),
        "build": build,
        "qairt": release[1],
        # For a shell, line breaks and all.
        "prefix": shlex.quote(template.prefix),
        "suffix": shlex.quote(template.suffix),
        "spaces": stripped_spaces(template),
    }


def stripped_spaces(template: PromptTemplate) -> str:
    """Return the characters that a template takes away around a question, for a shell script.

    One word a character, its UTF-8 bytes as printf's %b takes them. They are those of str.strip,
    which the chat templates' `trim` is; none where the template takes nothing away.
    """
    if not template.strip:
        return ""
    spaces = [char for char in map(chr, range(sys.maxunicode)) if char.isspace()]
    return " ".join("".join(f"\\0{byte:03o}" for byte in char.encode()) for char in spaces)


def _programs_row(android: Mapping[str, str] | None) -> str:
    """Return the row of README.md's list of files for what an NDK built, or nothing."""
    if android is None:
        return ""
    return (
        f"\n| `{bundle_manifest.PROGRAMS}/` | `qnn_runner` and `libsnapbake_genie.so`, built of "
        f"these by the Android NDK {android['ndk']} for {android['platform']} |"
    )


def _answers(genie: Mapping[str, Any]) -> str:
    def cell(text: str) -> str:
        return " ".join(text.replace("|", "\\|").split())

    rows = [
        f"| {cell(each['question'])} | {cell(each['genie']['text'])} "
        f"| {cell(each['float']['text'])} |"
        for each in genie["prompts"]
    ]
    return "\n".join(["| question | Genie, this bundle | original, fp32 |", "|---|---|---|", *rows])


def _figures_table(verdict: Mapping[str, Any]) -> str:
    emulator = verdict["emulator"]
    rows = [
        ("tokens compared", f"{emulator['tokens']}"),
        ("KL divergence of the next token, in nats", f"{emulator['kl_divergence']:.4f}"),
        ("same likeliest token", f"{emulator['top1_agreement']:.1%}"),
        (
            "perplexity, original and this",
            f"{emulator['perplexity_float']:.2f}, {emulator['perplexity']:.2f}",
        ),
    ]
    return "\n".join(
        ["| on the emulator | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    )


def _licences(
    summary: Mapping[str, Any],
    description: Mapping[str, Any],
    android: Mapping[str, str] | None,
) -> str:
    licence = summary.get("licence") or "not stated by the model; ask its publisher"
    programs = (
        ""
        if android is None
        else f"""
{bundle_manifest.PROGRAMS}/
  Built of the sources in android/ by the Android NDK {android["ndk"]}, whose C++ library is linked
  into them: LLVM's, Apache License 2.0 with the LLVM exceptions.
"""
    )
    return f"""\
context.bin, tokenizer.json, prompt_template.json
  Made of the model {summary["source"]["location"]}.
  Licence of the model, as it states it: {licence}

context.bin
  Compiled by Qualcomm's QAIRT libraries {description["qairt_build"]} out of the package
  onnxruntime-qnn {description["versions"]["onnxruntime-qnn"]}. Their terms are in that package,
  Qualcomm_LICENSE.pdf; read them before you pass this file on.

Not in this folder
  Genie and the QNN libraries of the phone. They come with the QAIRT SDK under Qualcomm's terms.

genie_config.json, htp_backend_ext_config.json, run_on_phone.sh, README.md, MANIFEST.json,
android/runner.json
  Written by snapbake for this bundle; use them as you like.

android/, the sources
  Part of snapbake; use them as you like.
{programs}"""


def _packages(requirements: Path) -> dict[str, str]:
    """Return the versions of the pinned packages: the installed one, else the pin.

    Where each rule has an environment of its own, this one has not all of them.
    """
    versions = {}
    for line in requirements.read_text(encoding="utf-8").splitlines():
        name, equals, pin = line.partition("==")
        if equals and not line.startswith("#"):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = pin.strip()
    return versions
