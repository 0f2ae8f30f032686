"""Frozen graphs have fixed borders everywhere and refer to the same weights."""

import os
import shutil
from pathlib import Path

import onnx
import pytest

from snapbake.errors import SnapbakeError
from snapbake.freeze import freeze_shapes
from snapbake.onnx_files import shape_of


@pytest.fixture
def export(tiny_onnx: dict[str, Path], tmp_path: Path) -> Path:
    """A private copy of one export, model.onnx in it."""
    for name in ("model.onnx", "model.onnx_data"):
        shutil.copy(tiny_onnx["qwen2"] / name, tmp_path)
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(("graph", "tokens"), [("prefill", 16), ("decode", 1)])
def test_every_border_is_fixed(tiny_graphs: Path, graph: str, tokens: int) -> None:
    model = onnx.load(tiny_graphs / f"c64.static.{graph}.onnx", load_external_data=False)
    past = [1, 1, 64 - tokens, 64]
    caches = [f"{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    assert {value.name: shape_of(value) for value in model.graph.input} == {
        "input_ids": [1, tokens],
        "attention_mask": [1, 64],
        "position_ids": [1, tokens],
        **{f"past_key_values.{name}": past for name in caches},
    }
    assert {value.name: shape_of(value) for value in model.graph.output} == {
        "logits": [1, tokens, 512],
        **{f"present.{name}": [1, 1, 64, 64] for name in caches},
    }


def test_the_weights_are_not_read(export: Path) -> None:
    freeze_shapes(export, 16, 64, export.with_name("a.onnx"))
    data = export.with_name("model.onnx_data")
    size = data.stat().st_size
    data.unlink()
    with data.open("wb") as stream:
        stream.truncate(size)
    freeze_shapes(export, 16, 64, export.with_name("b.onnx"))
    frozen = export.with_name("a.onnx").read_bytes()
    assert frozen == export.with_name("b.onnx").read_bytes()
    assert len(frozen) <= export.stat().st_size


@pytest.mark.parametrize(("tokens", "context"), [(16, 16), (16, 8), (1, 1)])
def test_a_context_without_past_is_refused(export: Path, tokens: int, context: int) -> None:
    with pytest.raises(SnapbakeError, match=f"context of {context} tokens leaves no past"):
        freeze_shapes(export, tokens, context, export.with_name("out.onnx"))
    assert not export.with_name("out.onnx").exists()


def test_no_tokens_are_refused(export: Path) -> None:
    with pytest.raises(SnapbakeError, match="at least 1 token"):
        freeze_shapes(export, 0, 64, export.with_name("out.onnx"))


def test_missing_data_is_refused(export: Path) -> None:
    export.with_name("model.onnx_data").unlink()
    with pytest.raises(SnapbakeError, match=r"model\.onnx_data does not exist"):
        freeze_shapes(export, 16, 64, export.with_name("out.onnx"))
    assert list(export.parent.iterdir()) == [export]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_linked_data_is_refused(export: Path, tmp_path: Path, link) -> None:
    data = export.with_name("model.onnx_data")
    data.rename(tmp_path / "elsewhere")
    link(tmp_path / "elsewhere", data)
    with pytest.raises(SnapbakeError, match=r"model\.onnx_data is a link"):
        freeze_shapes(export, 16, 64, export.with_name("out.onnx"))


def test_another_folder_is_refused(export: Path, tmp_path: Path) -> None:
    with pytest.raises(SnapbakeError, match="beside the data file"):
        freeze_shapes(export, 16, 64, tmp_path / "other" / "out.onnx")
    assert not (tmp_path / "other").exists()


def test_the_input_is_not_overwritten(export: Path) -> None:
    with pytest.raises(SnapbakeError, match="would overwrite the input"):
        freeze_shapes(export, 16, 64, export)


def test_a_graph_that_is_frozen_already_is_refused(tiny_onnx: dict[str, Path]) -> None:
    frozen = tiny_onnx["llama"] / "c64.static.prefill.onnx"
    with pytest.raises(SnapbakeError, match="input_ids is int64"):
        freeze_shapes(frozen, 16, 64, frozen.with_name("out.onnx"))


def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff\xff not a graph")
    with pytest.raises(SnapbakeError, match="is not an ONNX file"):
        freeze_shapes(path, 16, 64, tmp_path / "out.onnx")
