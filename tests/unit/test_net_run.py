"""net_run on real binaries: against ONNX Runtime on the CPU, with every mistake refused."""

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from snapbake import net_run, raw_files
from snapbake.errors import SnapbakeError
from snapbake.net_run import Emulator, Result
from snapbake.qnn_system import TensorInfo, read_context_binary
from tiny_binaries import (
    OUT_SCALE,
    OUT_ZERO_POINT,
    SCALE,
    SHAPE,
    VOCABULARY,
    ZERO_POINT,
    TinyBinaries,
    make_tiny_binaries,
)

PROGRAM = Path(__file__).parents[2] / "scripts" / "net_run.py"
ELEMENTS = int(np.prod(SHAPE))


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> TinyBinaries:
    return make_tiny_binaries(tmp_path_factory.getbasetemp() / "tiny_binaries")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with x.raw (float32), x16.raw (uint16), ids.raw (int32)."""
    monkeypatch.chdir(tmp_path)
    _x().tofile("x.raw")
    _codes().tofile("x16.raw")
    np.array([3], np.int32).tofile("ids.raw")
    return tmp_path


def _x() -> np.ndarray:
    return np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)


def _codes() -> np.ndarray:
    return np.random.default_rng(6).integers(20000, 40000, SHAPE).astype(np.uint16)


def _on_cpu(binary: Path, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(
        TinyBinaries.model(binary), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _cosine(left: np.ndarray, right: np.ndarray) -> float:
    left, right = left.ravel().astype(np.float64), right.ravel().astype(np.float64)
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def _run(
    binary: Path,
    *lists: str | None,
    native_inputs: bool = False,
    native_outputs: bool = False,
    report: Callable[[str], None] = print,
) -> list[Result]:
    """Run lists of these texts in the working folder, results in `output`."""
    parsed = []
    for index, text in enumerate(lists):
        if text is not None:
            Path(f"list{index}.txt").write_text(text)
        parsed.append(None if text is None else net_run.parse_input_list(Path(f"list{index}.txt")))
    return net_run.run_binary(
        binary,
        parsed,
        Path("output"),
        native_inputs=native_inputs,
        native_outputs=native_outputs,
        report=report,
    )


@pytest.mark.usefixtures("place")
class TestRuns:
    def test_float_graph_equals_the_cpu(self, binaries: TinyBinaries) -> None:
        np.array([8], np.int32).tofile("ids2.raw")
        lines: list[str] = []
        results = _run(
            binaries.real,
            "x:=x.raw ids:=ids.raw\n\nids:=ids2.raw x:=x.raw\n",
            report=lines.append,
        )
        assert [result.folder for result in results] == [
            Path("output/Result_0"),
            Path("output/Result_1"),
        ]
        assert all(result.seconds > 0 for result in results)
        assert "loaded in" in lines[0]
        assert "inference 2 of 2 took" in lines[2]
        for result, ids in zip(results, (3, 8), strict=True):
            expected = _on_cpu(binaries.real, {"x": _x(), "ids": np.array([ids], np.int32)})
            assert {path.name for path in result.folder.iterdir()} == {"y.raw", "c.raw"}
            for name, values in expected.items():
                found = np.fromfile(result.folder / f"{name}.raw", np.float32)
                assert _cosine(found, values) > 0.99999

    def test_codes_equal_the_cpu_to_one_step(self, binaries: TinyBinaries) -> None:
        _run(binaries.codes, "x16.raw\n", native_inputs=True, native_outputs=True)
        found = np.fromfile("output/Result_0/y.raw", np.uint16).astype(int)
        expected = _on_cpu(binaries.codes, {"x": _codes()})["y"].ravel().astype(int)
        assert np.abs(found - expected).max() <= 1

    def test_float_files_are_quantised_and_dequantised(self, binaries: TinyBinaries) -> None:
        ((_codes().astype(np.float64) - ZERO_POINT) * SCALE).astype(np.float32).tofile("x.raw")
        _run(binaries.codes, "x:=x16.raw", native_inputs=True, native_outputs=True)
        codes = np.fromfile("output/Result_0/y.raw", np.uint16)
        _run(binaries.codes, "x:=x.raw")
        real = np.fromfile("output/Result_0/y.raw", np.float32)
        expected = (codes.astype(np.float64) - OUT_ZERO_POINT) * np.float32(OUT_SCALE)
        np.testing.assert_array_equal(real, expected.astype(np.float32))

    def test_float16_tensors_in_both_kinds_of_files(self, binaries: TinyBinaries) -> None:
        half = _x().astype(np.float16)
        half.tofile("half.raw")
        half.astype(np.float32).tofile("x.raw")
        expected = _on_cpu(binaries.half, {"x": half})["y"]
        _run(binaries.half, "x:=half.raw", native_inputs=True, native_outputs=True)
        native = np.fromfile("output/Result_0/y.raw", np.float16)
        assert _cosine(native, expected) > 0.99999
        _run(binaries.half, "x:=x.raw")
        np.testing.assert_array_equal(np.fromfile("output/Result_0/y.raw", np.float32), native)

    @pytest.mark.parametrize("first", ["%y", "#y", "% y", "%y %y"])
    def test_the_first_line_chooses_outputs(self, binaries: TinyBinaries, first: str) -> None:
        (result,) = _run(binaries.real, f"{first}\nx:=x.raw ids:=ids.raw")
        assert [path.name for path in result.folder.iterdir()] == ["y.raw"]

    def test_several_graphs_have_a_folder_each(self, binaries: TinyBinaries) -> None:
        first, second = read_context_binary(binaries.split).graphs
        _run(binaries.split, "x.raw", "x.raw")
        file = raw_files.file_name(first.outputs[0])
        before = np.fromfile(Path("output") / first.name / "Result_0" / file, np.float32)
        erf = np.vectorize(math.erf)(before).astype(np.float32)
        erf.tofile("erf.raw")
        _run(binaries.split, None, "erf.raw")
        found = np.fromfile(Path("output") / second.name / "Result_0" / "y.raw", np.float32)
        assert _cosine(found, _on_cpu(binaries.split, {"x": _x()})["y"]) > 0.9999
        # The graph that was left out keeps what an earlier run wrote.
        assert (Path("output") / first.name / "Result_0" / file).exists()

    def test_a_new_run_leaves_no_result_of_the_last(self, binaries: TinyBinaries) -> None:
        line = "x:=x.raw ids:=ids.raw\n"
        _run(binaries.real, line * 3)
        for name in ("notes.txt", "Result_of_march"):
            Path("output", name).touch()
        _run(binaries.real, line)
        found = sorted(path.name for path in Path("output").iterdir())
        assert found == ["Result_0", "Result_of_march", "notes.txt"]

    def test_an_emulator_answers_call_after_call(self, binaries: TinyBinaries) -> None:
        with Emulator(binaries.real) as emulator:
            graph = emulator.info.graphs[0].name
            for index, ids in enumerate((0, 9)):
                np.array([ids], np.int32).tofile("ids.raw")
                emulator.infer(
                    graph,
                    {"x": Path("x.raw"), "ids": Path("ids.raw")},
                    Path(f"step/{index}"),
                    outputs=["y"],
                    native_inputs=True,
                    native_outputs=True,
                )
            with pytest.raises(SnapbakeError, match="has no graph prefill; it has QNN"):
                emulator.infer("prefill", {}, Path(), native_inputs=True, native_outputs=True)
            assert emulator.load() == emulator.load() > 0
        expected = _on_cpu(binaries.real, {"x": _x(), "ids": np.array([9], np.int32)})["y"]
        assert _cosine(np.fromfile("step/1/y.raw", np.float32), expected) > 0.99999


REFUSALS = {
    "missing file": ("x:=x.raw ids:=none.raw", r"line 1 .*none\.raw does not exist"),
    "folder": ("x:=x.raw ids:=.", r"is not a file"),
    "unknown name": ("x:=x.raw id:=ids.raw", r"has no input id; did you mean ids\?"),
    "missing name": ("\nx:=x.raw", r"line 2 of list0\.txt gives no file for ids of graph"),
    "name twice": ("x:=x.raw ids:=ids.raw x:=x.raw", r"a file for x twice"),
    "no names": ("x.raw ids.raw", r"gives x\.raw without a tensor's name; .* x, ids"),
    "no path": ("x:= ids:=ids.raw", r"has 'x:='; write `name:=path`"),
    "empty list": ("\n\n", r"names no input files"),
    "only outputs": ("%y\n", r"names no input files"),
    "unknown output": ("%z\nx:=x.raw ids:=ids.raw", r"has no output z; its outputs are c, y"),
    "no output": ("%\nx:=x.raw ids:=ids.raw", r"chooses no output; name one of"),
    "late outputs": ("x:=x.raw ids:=ids.raw\n%y", r"line 2 .* only the first line can"),
    "second line wrong": (
        "x:=x.raw ids:=ids.raw\nx:=ids.raw ids:=ids.raw",
        r"line 2 .*ids\.raw has 4 bytes and tensor x \(float32, shape \[1, 16, 4, 4\]\) takes "
        rf"{ELEMENTS * 4} bytes of float32",
    ),
}

# What is wrong with a file: for which binary, its elements, native or not, the words.
BAD_FILES = {
    "int64 ids": ("real", "ids", np.array([3], np.int64), False, "that of int64: write int32"),
    "float ids": ("real", "ids", np.array([3], np.float32), False, r"holds float32 \(its first"),
    "integers as float": ("real", "x", np.ones(ELEMENTS, np.int32), False, "holds integers"),
    "nan": ("real", "x", np.full(ELEMENTS, np.nan, np.float32), True, "has nan at element 0"),
    "infinite mask": (
        "codes",
        "x",
        np.append(np.zeros(ELEMENTS - 1, np.float32), np.float32(-np.inf)),
        False,
        f"has -inf at element {ELEMENTS - 1}; write finite",
    ),
    "nan for codes": (
        "codes",
        "x",
        np.full(ELEMENTS, np.nan, np.float32),
        False,
        "has nan at element 0",
    ),
    "beyond float16": (
        "half",
        "x",
        np.full(ELEMENTS, -1e9, np.float32),
        False,
        "has -1000000000.0 at element 0, beyond float16's range of ±65504",
    ),
    "native as float": ("codes", "x", _codes(), False, "add --use_native_input_files"),
    "float as native": ("codes", "x", _x(), True, "leave out --use_native_input_files"),
    "two batches": ("codes", "x", np.tile(_codes(), 3), True, "write one file for each"),
    "cut short": ("codes", "x", _codes().ravel()[1:], True, "write the file again"),
    "empty": ("codes", "x", np.empty(0, np.uint16), True, "has 0 bytes"),
}


@pytest.mark.usefixtures("place")
class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_emulator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever these tests do is refused before the emulator starts."""

        def started(_emulator: Emulator) -> float:
            raise AssertionError("the emulator was started")

        monkeypatch.setattr(Emulator, "load", started)

    @pytest.mark.parametrize(("text", "words"), REFUSALS.values(), ids=REFUSALS)
    def test_lists(self, binaries: TinyBinaries, text: str, words: str) -> None:
        with pytest.raises(SnapbakeError, match=words):
            _run(binaries.real, text)
        assert not Path("output").exists()

    @pytest.mark.parametrize(
        ("binary", "tensor", "values", "native", "words"), BAD_FILES.values(), ids=BAD_FILES
    )
    def test_files(
        self,
        binaries: TinyBinaries,
        binary: str,
        tensor: str,
        values: np.ndarray,
        native: bool,
        words: str,
    ) -> None:
        values.tofile("bad.raw")
        files = {"x": "x.raw", "ids": "ids.raw"} if binary == "real" else {"x": "x.raw"}
        files[tensor] = "bad.raw"
        with pytest.raises(SnapbakeError, match=rf"line 1 of list0\.txt: bad\.raw .*{words}"):
            _run(
                getattr(binaries, binary),
                " ".join(f"{name}:={file}" for name, file in files.items()),
                native_inputs=native,
            )
        assert not Path("output").exists()

    def test_two_files_for_one_input(self, binaries: TinyBinaries) -> None:
        with pytest.raises(SnapbakeError, match=r"gives 2 files and graph .* has one input, x"):
            _run(binaries.half, "x.raw x.raw")

    def test_two_graphs_but_one_list(self, binaries: TinyBinaries) -> None:
        with pytest.raises(SnapbakeError, match=r"has 2 graphs \(.*\) and 1 was given .* __ in"):
            _run(binaries.split, "x.raw")

    def test_one_graph_but_two_lists(self, binaries: TinyBinaries) -> None:
        with pytest.raises(SnapbakeError, match=r"has 1 graph .* 2 were given"):
            _run(binaries.half, "x.raw", "x.raw")

    def test_all_graphs_left_out(self, binaries: TinyBinaries) -> None:
        with pytest.raises(SnapbakeError, match=r"all graphs of .* are left out"):
            _run(binaries.split, None, None)

    def test_a_full_disk(self, binaries: TinyBinaries, monkeypatch: pytest.MonkeyPatch) -> None:
        full = shutil.disk_usage(".")._replace(free=ELEMENTS * 4 * 2 - 1)
        monkeypatch.setattr("shutil.disk_usage", lambda _folder: full)
        with pytest.raises(SnapbakeError, match=r"output needs .* of disk space"):
            _run(binaries.real, "x:=x.raw ids:=ids.raw")
        assert not Path("output").exists()

    def test_a_missing_list(self) -> None:
        with pytest.raises(SnapbakeError, match=r"none\.txt does not exist"):
            net_run.parse_input_list(Path("none.txt"))

    def test_a_list_that_is_no_text(self, binaries: TinyBinaries) -> None:
        with pytest.raises(SnapbakeError, match="is not UTF-8 text"):
            net_run.parse_input_list(binaries.real)


@pytest.mark.usefixtures("place")
class TestFailures:
    def test_shared_weights_are_explained(self, binaries: TinyBinaries) -> None:
        line = "x:=x.raw ids:=ids.raw"
        with pytest.raises(SnapbakeError, match=r"Shared weights .*run the binaries of one graph"):
            _run(binaries.shared, line, line)
        assert not Path("output").exists()

    def test_an_error_of_the_graph_has_its_code_and_last_words(
        self, binaries: TinyBinaries
    ) -> None:
        _run(binaries.real, "x:=x.raw ids:=ids.raw")
        before = Path("output/Result_0/y.raw").read_bytes()
        np.array([VOCABULARY + 5], np.int32).tofile("beyond.raw")
        with pytest.raises(SnapbakeError) as caught:
            _run(binaries.real, "x:=x.raw ids:=ids.raw\nx:=x.raw ids:=beyond.raw")
        message = str(caught.value)
        assert "running graph QNNExecutionProvider" in message
        assert "QNN error 1100 (execution aborted)" in message
        assert "Gather index: 15 is larger than input dim" in message
        # The first inference was right, and still is no result of a run that failed.
        assert sorted(path.name for path in Path("output").iterdir()) == ["Result_0"]
        assert Path("output/Result_0/y.raw").read_bytes() == before

    def test_a_crash_at_loading_is_named(self, binaries: TinyBinaries) -> None:
        graph = read_context_binary(binaries.real).graphs[0].name
        _crash(binaries.real, rf"loading damaged\.bin \(with {graph}\)", first=32768)

    def test_a_crash_of_a_graph_is_named(self, binaries: TinyBinaries) -> None:
        graph = read_context_binary(binaries.real).graphs[0].name
        _crash(binaries.real, rf"running graph {graph} of damaged\.bin", first=46080)


def _crash(binary: Path, what: str, first: int) -> None:
    """Damage a binary, block after block from a place on, until the emulator really crashes."""
    whole = binary.read_bytes()
    for start in range(first, len(whole), 256):
        if not any(whole[start : start + 256]):
            continue
        Path("damaged.bin").write_bytes(whole[:start] + b"\x55" * 256 + whole[start + 256 :])
        shutil.rmtree("output", ignore_errors=True)
        try:
            _run(Path("damaged.bin"), "%y\nx:=x.raw ids:=ids.raw")
        except SnapbakeError as error:
            if re.match(f"{what} crashed: the HTP emulator was killed by SIG", str(error)):
                assert not Path("output").exists()
                return
    raise AssertionError("no damage made the emulator crash")


def test_the_program_s_help_can_be_read() -> None:
    text = subprocess.run(
        [sys.executable, PROGRAM, "--help"], check=True, capture_output=True, text=True
    ).stdout
    for words in ("--retrieve_context BIN", "name:=path", "Result_<n>", "int32"):
        assert words in text


def test_the_program_runs_and_refuses(binaries: TinyBinaries, place: Path) -> None:
    Path("list.txt").write_text("%y\nx:=x.raw ids:=ids.raw\n")
    command = [sys.executable, str(PROGRAM), "--retrieve_context", str(binaries.real)]
    done = subprocess.run(
        [*command, "--input_list", "list.txt", "--backend", "/any/libQnnHtp.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert "inference 1 of 1 took" in done.stderr
    assert (place / "output/Result_0/y.raw").stat().st_size == ELEMENTS * 4
    for options, words in (
        (["--input_list", "none.txt"], "error: none.txt does not exist; check the path"),
        (["--input_list", "list.txt", "--backend", "libQnnCpu.so"], "error: --backend"),
        (["--input_list", "list.txt", "--use_native_input_files"], ""),
    ):
        refused = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert refused.returncode == (1 if words else 0)
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr


def test_only_numpy_is_imported() -> None:
    """What the program imports reruns the rules that use it, and takes time at every start."""
    program = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import net_run\n"
        "print({'onnx', 'onnxruntime', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


class TestRawFiles:
    def test_quantising_rounds_and_saturates(self) -> None:
        tensor = TensorInfo("t", "ufix8", (5,), 0.5, -10)
        codes = raw_files.quantize(np.array([-100, -5, 0.2, 0.3, 1000], np.float32), tensor)
        assert codes.dtype == np.uint8
        assert codes.tolist() == [0, 0, 10, 11, 255]
        assert raw_files.dequantize(codes, tensor).tolist() == [-5, -5, 0, 0.5, 122.5]

    @pytest.mark.parametrize(
        ("name", "file"),
        [
            ("logits", "logits.raw"),
            ("past_key_0_out", "past_key_0_out.raw"),
            ("/model/norm.out:0", "_model_norm_out_0.raw"),
            ("0_out", "_0_out.raw"),
        ],
    )
    def test_file_names(self, name: str, file: str) -> None:
        assert raw_files.file_name(TensorInfo(name, "float32", (1,), None, None)) == file

    def test_types_without_whole_bytes_are_refused(self) -> None:
        with pytest.raises(SnapbakeError, match="has the type ufix4, which cannot be read"):
            raw_files.check_writable(TensorInfo("t", "ufix4", (1,), 1.0, 0), native=True)

    def test_codes_without_an_encoding_need_native_files(self) -> None:
        tensor = TensorInfo("t", "ufix16", (1,), None, None)
        raw_files.check_writable(tensor, native=True)
        with pytest.raises(SnapbakeError, match="no single scale and offset"):
            raw_files.check_writable(tensor, native=False)
