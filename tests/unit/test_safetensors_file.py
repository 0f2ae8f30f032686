"""Headers of whole and damaged safetensors files, and the writer that streams."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from snapbake.errors import SnapbakeError
from snapbake.safetensors_file import equal_bytes, read_blocks, read_header, write_tensors

TENSORS = {
    "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "single": torch.linspace(-1, 1, 5),
    "odd": torch.ones(3, dtype=torch.float16),
}


def saved(path: Path, tensors: dict[str, torch.Tensor] = TENSORS) -> Path:
    save_file(tensors, path)
    return path


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + data)
    return path


def test_headers_say_what_is_in_the_file(tmp_path: Path) -> None:
    infos = read_header(saved(tmp_path / "a.safetensors"))

    assert {name: (info.dtype, info.shape) for name, info in infos.items()} == {
        "half": ("BF16", (2, 3)),
        "single": ("F32", (5,)),
        "odd": ("F16", (3,)),
    }
    data = b"".join(read_blocks(infos["single"]))
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), TENSORS["single"].numpy())


def test_a_copy_loads_as_the_same_tensors(tmp_path: Path) -> None:
    infos = read_header(saved(tmp_path / "a.safetensors"))

    write_tensors(infos.values(), tmp_path / "b.safetensors")

    loaded = load_file(tmp_path / "b.safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_the_identity_does_not_depend_on_the_layout(tmp_path: Path) -> None:
    whole = read_header(saved(tmp_path / "a.safetensors"))
    shards: dict[str, Any] = {}
    for name, tensor in TENSORS.items():
        shards |= read_header(saved(tmp_path / f"{name}.safetensors", {name: tensor}))
    changed = dict(TENSORS, odd=torch.tensor([1, 1, 2], dtype=torch.float16))
    other = read_header(saved(tmp_path / "c.safetensors", changed))

    first = write_tensors(whole.values(), tmp_path / "1")
    second = write_tensors(reversed(shards.values()), tmp_path / "2")
    third = write_tensors(other.values(), tmp_path / "3")

    assert first == second != third
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_equal_bytes(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(4), "b": torch.ones(4), "c": torch.zeros(4), "d": torch.ones(2, 2)}
    infos = read_header(saved(tmp_path / "a.safetensors", tensors))

    assert equal_bytes(infos["a"], infos["b"])
    assert not equal_bytes(infos["a"], infos["c"])
    assert not equal_bytes(infos["a"], infos["d"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_named_with_their_place(
    tmp_path: Path, dtype: torch.dtype, value: float
) -> None:
    tensor = torch.full((3000, 1700), torch.finfo(dtype).max, dtype=dtype)  # several blocks
    tensor[2990, 7] = value
    infos = read_header(
        saved(tmp_path / "a.safetensors", {"good": tensor[:2].clone(), "bad": tensor})
    )

    with pytest.raises(SnapbakeError, match=r"tensor bad has NaN or infinity at \[2990, 7\]"):
        write_tensors(infos.values(), tmp_path / "b.safetensors")


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"

DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "a Git LFS pointer": (lambda path: path.write_bytes(LFS_POINTER), "git lfs pull"),
    "a few bytes": (lambda path: path.write_bytes(b"abc"), "not a safetensors file"),
    "a web page": (lambda path: path.write_bytes(b"<!DOCTYPE html>" * 9), "not a safetensors file"),
    "truncated data": (lambda path: path.write_bytes(saved(path).read_bytes()[:-1]), "truncated"),
    "truncated header": (lambda path: path.write_bytes(saved(path).read_bytes()[:60]), "header"),
    "overlong": (lambda path: path.write_bytes(saved(path).read_bytes() + b"x"), "longer than"),
    "no JSON": (lambda path: raw_file(path, b"{'a': 1}"), "header cannot be read"),
    "no UTF-8": (lambda path: raw_file(path, b'{"\xff": 1}'), "header cannot be read"),
    "no object": (lambda path: raw_file(path, [1]), "not an object"),
    "a name twice": (
        lambda path: raw_file(path, b'{"a": {}, "a": {}}'),
        "a name comes twice",
    ),
    "an unknown type": (lambda path: raw_file(path, {"a": entry("F7")}, bytes(8)), "'F7'"),
    "no type": (lambda path: raw_file(path, {"a": {"shape": [2]}}, bytes(8)), "damaged"),
    "a type that is no text": (lambda path: raw_file(path, {"a": entry([1])}, bytes(8)), "damaged"),
    "a negative size": (lambda path: raw_file(path, {"a": entry(shape=[-2])}, bytes(8)), "damaged"),
    "an entry that is no object": (lambda path: raw_file(path, {"a": 3}), "damaged"),
    "another shape": (lambda path: raw_file(path, {"a": entry(shape=[3])}, bytes(8)), "8 bytes"),
    "a hole": (lambda path: raw_file(path, {"a": entry(offsets=(8, 16))}, bytes(16)), "starts at"),
    "an overlap": (
        lambda path: raw_file(path, {"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
        "starts at",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    damage, fact = DAMAGES[name]
    damage(path)

    with pytest.raises(SnapbakeError) as caught:
        read_header(path)

    assert fact in str(caught.value)
    assert str(path) in str(caught.value)
