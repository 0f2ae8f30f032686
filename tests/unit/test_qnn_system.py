"""The metadata of context binaries that the real toolchain made."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from snapbake import qnn_library, qnn_types
from snapbake.errors import SnapbakeError
from snapbake.qnn_system import TensorInfo, read_context_binary
from tiny_binaries import (
    OUT_SCALE,
    OUT_ZERO_POINT,
    SCALE,
    SHAPE,
    ZERO_POINT,
    TinyBinaries,
    make_tiny_binaries,
)


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> TinyBinaries:
    return make_tiny_binaries(tmp_path_factory.getbasetemp() / "tiny_binaries")


def test_a_float_graph(binaries: TinyBinaries) -> None:
    info = read_context_binary(binaries.real)
    assert info.soc_model == 57
    assert info.build_id.startswith("v2.")
    for version in (info.blob_version, info.core_api, info.backend_api):
        assert len(version.split(".")) == 3
    (graph,) = info.graphs
    shape = tuple(SHAPE)
    assert graph.inputs == (
        TensorInfo("x", "float32", shape, None, None),
        TensorInfo("ids", "int32", (1,), None, None),
    )
    assert set(graph.outputs) == {
        TensorInfo("y", "float32", shape, None, None),
        TensorInfo("c", "float32", shape, None, None),
    }


def test_encodings_are_qnn_s_own(binaries: TinyBinaries) -> None:
    (graph,) = read_context_binary(binaries.codes).graphs
    shape = tuple(SHAPE)
    assert graph.inputs == (
        TensorInfo("x", "ufix16", shape, float(np.float32(SCALE)), -ZERO_POINT),
    )
    assert graph.outputs == (
        TensorInfo("y", "ufix16", shape, float(np.float32(OUT_SCALE)), -OUT_ZERO_POINT),
    )


def test_float16_borders(binaries: TinyBinaries) -> None:
    (graph,) = read_context_binary(binaries.half).graphs
    assert [tensor.dtype for tensor in graph.inputs + graph.outputs] == ["float16", "float16"]


def test_graphs_that_share_weights_can_be_read(binaries: TinyBinaries) -> None:
    first, second = read_context_binary(binaries.shared).graphs
    assert first.name != second.name
    assert first.inputs == second.inputs


@pytest.mark.parametrize("kept", [1, 100, 4096, 20000, -1])
def test_a_file_cut_short_is_named(binaries: TinyBinaries, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.bin"
    cut.write_bytes(binaries.real.read_bytes()[:kept])
    with pytest.raises(SnapbakeError, match=r"cut\.bin is not a whole QNN context binary"):
        read_context_binary(cut)


def test_a_foreign_file_is_named(binaries: TinyBinaries) -> None:
    with pytest.raises(SnapbakeError, match=r"real\.onnx is not a whole QNN context binary"):
        read_context_binary(binaries.model(binaries.real))


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SnapbakeError, match=r"none\.bin does not exist"):
        read_context_binary(tmp_path / "none.bin")
    (tmp_path / "empty.bin").touch()
    with pytest.raises(SnapbakeError, match=r"empty\.bin is empty"):
        read_context_binary(tmp_path / "empty.bin")


def test_damage_that_crashes_the_parser_is_an_answer(
    binaries: TinyBinaries, tmp_path: Path
) -> None:
    """QNN's parser follows the offsets of the header without a look at where they lead."""
    whole = binaries.real.read_bytes()
    damaged = tmp_path / "damaged.bin"
    crashes = 0
    for place in range(160, 200):
        content = bytearray(whole)
        content[place] ^= 0xFF
        damaged.write_bytes(content)
        try:
            read_context_binary(damaged)
        except SnapbakeError as error:
            assert "damaged.bin" in str(error)  # noqa: PT017
            crashes += "killed by SIG" in str(error)
        if crashes:
            break
    assert crashes


def test_the_layout_is_that_of_the_library() -> None:
    """A wrong size would shift every tensor after the first of an array."""
    assert ctypes.sizeof(qnn_types.Tensor) == 144


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (("linux", "x86_64", (3, 11), (2, 35)), None),
        (("linux", "AMD64", (3, 13), (2, 41)), None),
        (("darwin", "arm64", (3, 12), None), "this machine is darwin arm64"),
        (("win32", "AMD64", (3, 12), None), "this machine is win32 AMD64"),
        (("linux", "aarch64", (3, 12), (2, 39)), "this machine is linux aarch64"),
        (("linux", "x86_64", (3, 10), (2, 39)), "this is Python 3.10"),
        (("linux", "x86_64", (3, 12), (2, 31)), "this machine has glibc 2.31"),
        (("linux", "x86_64", (3, 12), None), "this machine's C library is not glibc"),
    ],
)
def test_machines(
    machine: tuple[str, str, tuple[int, int], tuple[int, int] | None], reason: str | None
) -> None:
    assert qnn_library.unsupported_reason(*machine) == reason


def test_another_machine_is_told_what_still_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SnapbakeError, match="quantisation and its evaluation on the CPU"):
        read_context_binary(tmp_path / "any.bin")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SnapbakeError, match=r"onnxruntime-qnn.*pip install -r requirements\.txt"):
        qnn_library.library_folder()


def test_a_missing_library_is_told_in_the_loader_s_words() -> None:
    with pytest.raises(SnapbakeError, match=r"libQnnNone\.so.*cannot open shared object file"):
        qnn_library.load_library("libQnnNone.so")
