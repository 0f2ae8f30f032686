"""The export holds exactly what the checkpoint holds, or there is no export."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from safetensors.torch import load_file, save_file

from snapbake.errors import SnapbakeError
from snapbake.export import check_export, export_checkpoint
from tiny_models import make_tiny_model

PROGRAM = Path(__file__).parents[2] / "scripts" / "export_onnx.py"


def change_weights(checkpoint: Path, change) -> None:
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.fixture
def checkpoint_copy(tiny_models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_models["qwen3"], tmp_path / "checkpoint"))


def test_writes_two_files_with_every_weight_in_the_data_file(tiny_graphs: Path) -> None:
    model = onnx.load(tiny_graphs / "model.onnx", load_external_data=False)
    names = {path.name for path in tiny_graphs.iterdir() if not path.name.startswith("c64.")}
    assert names == {"model.onnx", "model.onnx_data"}
    assert (tiny_graphs / "model.onnx").stat().st_size < 500_000
    assert all(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]


def test_the_data_file_can_be_read_by_others(tiny_graphs: Path) -> None:
    assert (tiny_graphs / "model.onnx_data").stat().st_mode & 0o777 != 0o600


def test_bfloat16_and_an_untied_head_come_out_as_fp32(tmp_path: Path) -> None:
    checkpoint = make_tiny_model(tmp_path / "model", "qwen3", tie=False, dtype="bfloat16")
    export_checkpoint(checkpoint, 17, tmp_path / "onnx")
    model = onnx.load(tmp_path / "onnx" / "model.onnx", load_external_data=False)
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == [
        "model.onnx",
        "model.onnx_data",
    ]


def test_two_exports_are_the_same_bytes(
    tiny_models: dict[str, Path], tiny_onnx: dict[str, Path], tmp_path: Path
) -> None:
    export_checkpoint(tiny_models["llama"], 18, tmp_path)
    for name in ("model.onnx", "model.onnx_data"):
        assert (tmp_path / name).read_bytes() == (tiny_onnx["llama"] / name).read_bytes()


def test_other_files_are_left_alone_and_leftovers_removed(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "c64.static.decode.onnx").write_text("kept")
    (tmp_path / ".export.killed").mkdir()
    export_checkpoint(tiny_models["llama"], 18, tmp_path)
    assert (tmp_path / "c64.static.decode.onnx").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {
        "c64.static.decode.onnx",
        "model.onnx",
        "model.onnx_data",
    }


def test_a_tensor_that_is_missing_stops_the_export(checkpoint_copy: Path, tmp_path: Path) -> None:
    key = "model.layers.1.self_attn.q_norm.weight"
    change_weights(checkpoint_copy, lambda tensors: tensors.pop(key))
    with pytest.raises(SnapbakeError, match=key):
        export_checkpoint(checkpoint_copy, 18, tmp_path / "onnx")
    assert list((tmp_path / "onnx").iterdir()) == []


def test_a_head_that_optimum_drops_is_found(checkpoint_copy: Path, tmp_path: Path) -> None:
    """Tied by config.json, yet the file holds another head: transformers ignores it."""

    def add_head(tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2

    change_weights(checkpoint_copy, add_head)
    with pytest.raises(SnapbakeError, match=r"does not hold the tensor lm_head\.weight"):
        export_checkpoint(checkpoint_copy, 18, tmp_path / "onnx")


def test_weights_of_another_checkpoint_are_found(
    tiny_onnx: dict[str, Path], tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path, "llama", seed=1)
    with pytest.raises(SnapbakeError, match="does not hold the tensor"):
        check_export(tiny_onnx["llama"] / "model.onnx", other, 18)


def test_a_tensor_that_the_checkpoint_does_not_have_is_found(
    tiny_models: dict[str, Path], tiny_onnx: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_onnx["llama"], tmp_path / "onnx"))
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    twin = model.graph.initializer.add()
    twin.CopyFrom(model.graph.initializer[0])
    twin.name = "made_up"
    next(entry for entry in twin.external_data if entry.key == "offset").value = "512"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(SnapbakeError, match="made_up"):
        check_export(folder / "model.onnx", tiny_models["llama"], 18)


def test_a_data_file_cut_short_is_found(
    tiny_models: dict[str, Path], tiny_onnx: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_onnx["llama"], tmp_path / "onnx"))
    data = folder / "model.onnx_data"
    data.write_bytes(data.read_bytes()[:-200])
    with pytest.raises(SnapbakeError, match="cut short"):
        check_export(folder / "model.onnx", tiny_models["llama"], 18)


def test_a_graph_of_another_size_is_found(
    tiny_models: dict[str, Path], tiny_onnx: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(tiny_models["llama"], tmp_path / "checkpoint"))
    config = json.loads((checkpoint / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(SnapbakeError, match=r"no past_key_values\.2\.key"):
        check_export(tiny_onnx["llama"] / "model.onnx", checkpoint, 18)


def test_an_export_that_wrote_nothing_is_found(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(SnapbakeError, match=r"wrote no model\.onnx"):
        check_export(tmp_path / "model.onnx", tiny_models["llama"], 18)


@pytest.mark.parametrize("opset", [16, 21])
def test_the_program_refuses_an_opset_in_one_line(
    tiny_models: dict[str, Path], tmp_path: Path, opset: int
) -> None:
    folder = tmp_path / "onnx"
    done = subprocess.run(
        [
            *(sys.executable, PROGRAM, "--checkpoint", tiny_models["llama"]),
            *("--opset", str(opset), "--output-dir", folder),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"error: opset {opset} cannot be exported; choose one from 17 to 20\n"
    assert not folder.exists()
