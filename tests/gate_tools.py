"""What the tests of the checkpoint gate do with folders: judge them, read them, damage them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from snapbake.checkpoint import prepare_checkpoint
from snapbake.files import read_json

SCRIPTS = Path(__file__).parents[1] / "scripts"
IDS = torch.arange(3, 60)[None]
Tensors = dict[str, torch.Tensor]


def prepare(
    folder: Path,
    output: Path,
    *,
    sha256: str | None = None,
    base: Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Run the gate into `output`/checkpoint and return the summary."""
    prepare_checkpoint(
        str(folder),
        sha256,
        None if base is None else str(base),
        trust,
        output / "checkpoint",
        output / "checkpoint.json",
    )
    return read_json(output / "checkpoint.json")


def logits(folder: Path, ids: torch.Tensor = IDS) -> torch.Tensor:
    """Return what transformers computes in float32; a weight too few or too many fails."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    assert not any(info.values())
    with torch.no_grad():
        return model(ids).logits


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; `...` removes a key."""
    content = read_json(path) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def edit_tensors(folder: Path, change: Callable[[Tensors], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def shard(folder: Path, count: int = 3) -> None:
    """Replace model.safetensors by shards and their index, as save_pretrained writes them."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = dict(list(tensors.items())[number::count])
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def as_transformers_5(folder: Path) -> None:
    """Rewrite a folder as transformers 5.6 saves it."""
    config = read_json(folder / "config.json")
    edit(
        folder / "config.json",
        rope_parameters={
            "rope_theta": config["rope_theta"],
            **(config["rope_scaling"] or {"rope_type": "default"}),
        },
        rope_theta=...,
        rope_scaling=...,
        dtype=config["torch_dtype"],
        torch_dtype=...,
        bos_token_id=None,
        transformers_version="5.6.0",
    )
    edit(
        folder / "tokenizer_config.json",
        tokenizer_class="TokenizersBackend",
        backend="tokenizers",
        is_local=True,
        extra_special_tokens=["<|im_start|>", "<|im_end|>"],
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run_script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
