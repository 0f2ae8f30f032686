"""pytorch_model.bin: read as data; what carries code or is not whole is refused."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gate_tools import Tensors, logits, prepare, tree
from snapbake.errors import SnapbakeError
from snapbake.torch_file import read_torch_file
from tiny_models import make_tiny_model

NAME = "pytorch_model.bin"


def legacy(folder: Path, change: Callable[[Tensors], Any] | None = None) -> Path:
    """Make a folder whose weights are in pytorch_model.bin, the tied head in it as saved."""
    make_tiny_model(folder, "qwen3")
    tensors: Any = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if change is not None:
        tensors = change(tensors) or tensors
    torch.save(tensors, folder / NAME)
    return folder


def shards(folder: Path) -> None:
    tensors = torch.load(folder / NAME, weights_only=True)
    (folder / NAME).unlink()
    weight_map = {}
    for number in (1, 2):
        name = f"pytorch_model-{number:05}-of-00002.bin"
        part = dict(list(tensors.items())[number - 1 :: 2])
        torch.save(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / f"{NAME}.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
def test_a_bin_is_the_same_model(sharded: bool, tmp_path: Path) -> None:
    plain = prepare(make_tiny_model(tmp_path / "plain", "qwen3"), tmp_path / "1")
    folder = legacy(tmp_path / "model")
    if sharded:
        shards(folder)

    summary = prepare(folder, tmp_path / "2")

    assert summary["sha256"] == plain["sha256"]
    assert torch.equal(logits(tmp_path / "2" / "checkpoint"), logits(tmp_path / "plain"))


def test_views_and_parameters_are_read_where_they_lie(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    torch.save({"rows": whole[1:], "own": torch.nn.Parameter(whole.half())}, tmp_path / NAME)

    found = read_torch_file(tmp_path / NAME)

    data = (tmp_path / NAME).read_bytes()
    rows, own = found["rows"], found["own"]
    assert (rows.dtype, rows.shape, own.dtype) == ("F32", (2, 4), "F16")
    assert data[rows.start : rows.end] == whole[1:].numpy().tobytes()
    assert data[own.start : own.end] == whole.half().numpy().tobytes()


class Payload:
    """What a pickle that carries code looks like."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def rewrite(path: Path, change: Callable[[str, bytes], bytes], **options: Any) -> None:
    """Change the records of an archive."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in records.items():
            archive.writestr(name, change(name, data))


def flip_a_weight(folder: Path) -> None:
    data = bytearray((folder / NAME).read_bytes())
    tensor = read_torch_file(folder / NAME)["model.norm.weight"]
    data[tensor.start] ^= 1
    (folder / NAME).write_bytes(data)


def write(data: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / NAME).write_bytes(data)


def save(content: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: torch.save(content, folder / NAME, **options)


REFUSALS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "code": (
        lambda folder: torch.save({"x": Payload(folder / "ran")}, folder / NAME),
        ["carries code", "system"],
    ),
    "code in another protocol": (
        lambda folder: torch.save({"x": Payload(folder / "ran")}, folder / NAME, pickle_protocol=4),
        ["carries code"],
    ),
    "a bare pickle": (
        lambda folder: write(pickle.dumps(Payload(folder / "ran")))(folder),
        ["before PyTorch 1.6", "safetensors"],
    ),
    "a whole module": (save(torch.nn.Linear(2, 2)), ["carries code", "Linear"]),
    "the old form": (
        save({"x": torch.ones(2)}, _use_new_zipfile_serialization=False),
        ["before PyTorch 1.6"],
    ),
    "nothing": (write(b""), [NAME, "is empty"]),
    "a pointer": (write(b"version https://git-lfs.github.com/spec/v1\n"), ["git lfs pull"]),
    "something else": (write(b"<html></html>"), ["not a file of PyTorch"]),
    "half of it": (
        lambda folder: write((folder / NAME).read_bytes()[:100_000])(folder),
        [NAME, "truncated"],
    ),
    "no pickle": (
        lambda folder: zipfile.ZipFile(folder / NAME, "w").close(),
        ["without PyTorch's data.pkl"],
    ),
    "compressed": (
        lambda folder: rewrite(
            folder / NAME, lambda _name, data: data, compression=zipfile.ZIP_DEFLATED
        ),
        ["is compressed"],
    ),
    "big-endian": (
        lambda folder: rewrite(
            folder / NAME,
            lambda name, data: b"big" if name.endswith("byteorder") else data,
        ),
        ["big-endian"],
    ),
    "a storage that is too short": (
        lambda folder: rewrite(
            folder / NAME, lambda name, data: data[:4] if name.endswith("data/3") else data
        ),
        ["reaches beyond", "damaged"],
    ),
    "a bit of a weight": (flip_a_weight, ["checksum", "damaged"]),
    "no dictionary": (save([torch.ones(2)]), ["no dictionary of tensors"]),
    "the state of a training": (
        save({"model": {"x": torch.ones(2)}, "step": 3}),
        ["'model'", "state of its training"],
    ),
    "a transposed view": (save({"x": torch.ones(2, 3).t()}), ["x is a transposed view"]),
    "complex numbers": (save({"x": torch.ones(2, dtype=torch.complex64)}), ["ComplexFloat"]),
    "safetensors beside it": (
        lambda folder: make_tiny_model(folder, "qwen3"),
        ["model.safetensors", NAME, "stale"],
    ),
    "a shard is missing": (
        lambda folder: (shards(folder), (folder / "pytorch_model-00002-of-00002.bin").unlink()),
        ["misses the shard pytorch_model-00002-of-00002.bin"],
    ),
    "shards beside it": (
        lambda folder: (
            data := (folder / NAME).read_bytes(),
            shards(folder),
            write(data)(folder),
        ),
        [NAME, "shards", "stale"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_without_running_or_leaving_anything(name: str, tmp_path: Path) -> None:
    folder = legacy(tmp_path / "model")
    damage, facts = REFUSALS[name]
    damage(folder)
    before = tree(tmp_path)

    with pytest.raises(SnapbakeError) as caught:
        prepare(folder, tmp_path)

    message = str(caught.value)
    assert [fact for fact in facts if fact not in message] == [], message
    assert "\n" not in message
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
