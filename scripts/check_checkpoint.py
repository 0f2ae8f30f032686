"""Judge a model folder: what it is and what would be normalised, or why it is refused.

Every value of the weights is looked at, and nothing is written. Exit code 0 means that
prepare_checkpoint.py takes the folder, 1 that it refuses it, with the same sentence.
"""

import argparse
import json
import traceback
from pathlib import Path
from typing import Any

from snapbake.checkpoint import check_checkpoint
from snapbake.errors import SnapbakeError, run_program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of a model or of a LoRA adapter")
    parser.add_argument(
        "--base",
        type=Path,
        help="folder of the model that a LoRA adapter is for; default: the folder beside the "
        "adapter that has the name of its base model",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, a refusal too")
    parser.add_argument("--verbose", action="store_true", help="show where a refusal arose")
    arguments = parser.parse_args()
    try:
        summary = check_checkpoint(arguments.folder, arguments.base)
    except SnapbakeError as error:
        if arguments.verbose:
            traceback.print_exc()
        if arguments.json:
            print(json.dumps({"accepted": False, "error": str(error)}, ensure_ascii=False))
        raise
    if arguments.json:
        print(json.dumps({"accepted": True, **summary}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(describe(summary)))


def describe(summary: dict[str, Any]) -> list[str]:
    """Return the lines that say what a model is and what would be normalised."""
    spec = summary["spec"]
    dtypes = ", ".join(f"{name} ({count} tensors)" for name, count in summary["dtypes"].items())
    lines = [
        f"{summary['source']['location']}: {summary['architecture']}, "
        f"{summary['parameters'] / 1e6:.1f} million weights, {dtypes}",
        f"  {spec['layers']} layers of {spec['hidden_size']}, {spec['heads']} heads of "
        f"{spec['head_dim']} on {spec['kv_heads']} key/value heads, "
        f"head {'tied' if spec['tied_embeddings'] else 'not tied'} to the embedding",
        f"  vocabulary {spec['vocab_size']}, tokenizer {summary['tokens']} tokens, "
        f"rotary base {spec['rope']['theta']:g}, scaling {spec['rope']['kind']}",
        f"  SHA-256 of the weights {summary['sha256']}",
    ]
    if "adapter" in summary:
        adapter = summary["adapter"]
        lines += [
            f"  SHA-256 of the model {summary['model_sha256']}",
            f"{adapter['location']}: LoRA adapter of rank {adapter['ranks'][1]} for it, would be "
            f"merged in float32; tokenizer from {adapter['tokenizer']}",
            "  for `sha256` in the configuration: model_sha256 in checkpoint.json, once merged",
        ]
    else:
        lines.append(
            f"  SHA-256 of the model, for `sha256` in the configuration: {summary['model_sha256']}"
        )
    if summary["normalisations"]:
        lines.append("would be normalised:")
        lines += [f"  {note}" for note in summary["normalisations"]]
    else:
        lines.append("nothing would be normalised")
    return lines


if __name__ == "__main__":
    run_program(main)
