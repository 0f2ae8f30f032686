"""The binary with both graphs: compiled, compared with the proven ones, described."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from htp_graphs import WIDTH, make_float_graphs, make_quantized_graphs
from snapbake.context_binary import compile_graph
from snapbake.errors import SnapbakeError
from snapbake.htp_binary import read_htp_binary
from snapbake.htp_target import HtpTarget
from snapbake.safetensors_file import read_header, stored_identity, write_tensors
from snapbake.weight_sharing import share_weights

SM8650 = HtpTarget(soc_model=57, arch=75, vtcm_mb=8)


def compile_both(graphs: dict[str, Path], folder: Path, target: HtpTarget = SM8650) -> list[Path]:
    binaries = []
    for name, model in graphs.items():
        binaries.append(folder / f"{name}.bin")
        compile_graph(model, name, target, binaries[-1])
    return binaries


def share(graphs: dict[str, Path], proven: list[Path], folder: Path, *made_from: Path) -> Path:
    share_weights(
        graphs["prefill"],
        graphs["decode"],
        proven,
        "sm8650",
        SM8650,
        made_from,
        folder / "context.bin",
        folder / "context.json",
    )
    return folder / "context.json"


def write_parts(folder: Path) -> list[Path]:
    """Write what the manifest shall name beside the graphs: encodings, and weights as prepared."""
    encodings, weights = folder / "encodings.json", folder / "model.safetensors"
    encodings.write_text("{}\n")
    save_file({"x": np.ones(3, np.float32)}, folder / "trained.safetensors")
    write_tensors(read_header(folder / "trained.safetensors").values(), weights)
    return [encodings, weights]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graphs/, and soc/ with the proven binaries, context.bin and context.json."""
    folder = tmp_path_factory.mktemp("built")
    graphs = make_quantized_graphs(folder / "graphs")
    parts = write_parts(folder / "graphs")
    share(graphs, compile_both(graphs, folder / "soc"), folder / "soc", *parts)
    return folder


def test_the_manifest_describes_the_binary(built: Path) -> None:
    assert sorted(path.name for path in (built / "soc").iterdir()) == [
        "context.bin",
        "context.json",
        "decode.bin",
        "prefill.bin",
    ]
    manifest = json.loads((built / "soc" / "context.json").read_text())
    assert manifest["soc"] == "sm8650"
    assert [manifest[key] for key in ("soc_model", "arch", "vtcm_mb")] == [57, 75, 8]
    assert manifest["qairt_build"].startswith("v2.")
    assert manifest["versions"].keys() == {"onnxruntime", "onnxruntime-qnn"}
    assert list(manifest["graphs"]) == ["decode", "prefill"]
    prefill = manifest["graphs"]["prefill"]
    assert prefill["name"].rstrip("_") == "prefill"
    assert prefill["inputs"] == [
        {
            "name": "x",
            "dtype": "ufix16",
            "shape": [1, 1, 8, WIDTH],
            "scale": pytest.approx(2e-4),
            "offset": -32768,
        }
    ]
    files = [manifest["binary"], *manifest["proven"].values(), *manifest["made_from"]]
    assert [file["path"] for file in files] == [
        "context.bin",
        "decode.bin",
        "prefill.bin",
        "../graphs/decode.onnx",
        "../graphs/encodings.json",
        "../graphs/model.safetensors",
        "../graphs/prefill.onnx",
        "../graphs/weights.data",
    ]
    for file in files:
        content = (built / "soc" / file["path"]).read_bytes()
        assert file["bytes"] == len(content)
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
    identity = stored_identity(built / "graphs" / "model.safetensors")
    assert identity is not None
    assert manifest["weights_sha256"] == identity
    sizes = [(built / "soc" / name).stat().st_size for name in ("context.bin", "decode.bin")]
    assert manifest["ratio_to_decode"] == sizes[0] / sizes[1]


def test_both_graphs_are_in_the_binary_with_their_weights_once(built: Path) -> None:
    binary = read_htp_binary(built / "soc" / "context.bin")
    assert {graph.name.rstrip("_") for graph in binary.info.graphs} == {"prefill", "decode"}
    sizes = {path.name: path.stat().st_size for path in (built / "soc").iterdir()}
    saved = sizes["prefill.bin"] + sizes["decode.bin"] - sizes["context.bin"]
    assert saved > WIDTH * WIDTH


def test_two_folders_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    graphs = make_quantized_graphs(tmp_path / "graphs")
    parts = write_parts(tmp_path / "graphs")
    share(graphs, compile_both(graphs, tmp_path / "soc"), tmp_path / "soc", *parts)
    for name in ("context.bin", "context.json"):
        assert (tmp_path / "soc" / name).read_bytes() == (built / "soc" / name).read_bytes()


def test_floating_point_graphs_share_as_well(tmp_path: Path) -> None:
    graphs = make_float_graphs(tmp_path / "graphs")
    manifest = json.loads(share(graphs, compile_both(graphs, tmp_path), tmp_path).read_text())
    assert manifest["graphs"]["decode"]["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": [1, WIDTH, 1, 1], "scale": None, "offset": None}
    ]


def refused(graphs: dict[str, Path], proven: list[Path], folder: Path) -> str:
    """Return the message; nothing may be left."""
    with pytest.raises(SnapbakeError) as caught:
        share(graphs, proven, folder)
    assert not folder.exists() or not any(folder.iterdir())
    return str(caught.value)


def test_other_encodings_than_the_proven_ones_are_found(built: Path, tmp_path: Path) -> None:
    other = make_quantized_graphs(tmp_path / "graphs", output_scale=4e-4)
    proven = [built / "soc" / f"{name}.bin" for name in ("prefill", "decode")]
    message = refused(other, proven, tmp_path / "out")
    assert "the graph prefill of" in message
    assert "y has scale 0.000399999" in message
    assert " instead of 0.00019999" in message


def test_proven_binaries_in_the_wrong_order_are_found(built: Path, tmp_path: Path) -> None:
    graphs = {name: built / "graphs" / f"{name}.onnx" for name in ("prefill", "decode")}
    proven = [built / "soc" / f"{name}.bin" for name in ("decode", "prefill")]
    message = refused(graphs, proven, tmp_path / "out")
    assert "x has shape (1, 1, 8, 256) instead of (1, 1, 1, 256)" in message


def test_a_proven_binary_with_two_graphs_is_refused(built: Path, tmp_path: Path) -> None:
    graphs = {name: built / "graphs" / f"{name}.onnx" for name in ("prefill", "decode")}
    context = built / "soc" / "context.bin"
    message = refused(graphs, [context, built / "soc" / "decode.bin"], tmp_path / "out")
    assert message == (
        f"{context} has 2 graphs; give the binary of the prefill graph alone, made by "
        "compile_graph.py"
    )


def test_a_proven_binary_for_another_chip_is_refused(built: Path, tmp_path: Path) -> None:
    graphs = {name: built / "graphs" / f"{name}.onnx" for name in ("prefill", "decode")}
    proven = [built / "soc" / "prefill.bin", tmp_path / "decode.bin"]
    compile_graph(graphs["decode"], "decode", HtpTarget(69, 79, 8), proven[1])
    message = refused(graphs, proven, tmp_path / "out")
    assert "decode.bin is for soc_model 69 (v79) and soc_model 57 (v75) was asked" in message


def test_graphs_of_one_file_name_are_refused(built: Path, tmp_path: Path) -> None:
    model = built / "graphs" / "decode.onnx"
    message = refused({"prefill": model, "decode": model}, [], tmp_path / "out")
    assert "have the same file name" in message
