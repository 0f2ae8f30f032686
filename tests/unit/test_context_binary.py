"""Compiling real graphs into context binaries."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from htp_graphs import SCALE, WIDTH, ZERO_POINT, make_float_graphs, make_quantized_graphs
from snapbake import context_binary
from snapbake.child_process import call_in_child
from snapbake.context_binary import compile_graph, weight_bytes
from snapbake.errors import SnapbakeError
from snapbake.htp_binary import GraphSettings, HtpBinary, describe, read_htp_binary
from snapbake.htp_target import HtpTarget
from snapbake.net_run import Emulator
from snapbake.onnx_files import load_graph
from snapbake.socs import Soc, load_socs

ROOT = Path(__file__).parents[2]
SM8650 = HtpTarget(soc_model=57, arch=75, vtcm_mb=8)


def test_the_binary_is_what_was_asked_for(tmp_path: Path) -> None:
    graphs = make_quantized_graphs(tmp_path / "graphs")
    output = tmp_path / "out" / "prefill.bin"
    compile_graph(graphs["prefill"], "prefill_ar8", SM8650, output)
    binary = read_htp_binary(output)
    (graph,) = binary.info.graphs
    assert graph.name.rstrip("_") == "prefill_ar8"
    assert binary.info.soc_model == 57
    assert binary.arch == 75
    assert binary.settings == {graph.name: GraphSettings(vtcm_mb=8, optimization_level=3)}
    (tensor,) = graph.inputs
    assert (tensor.name, tensor.dtype, tensor.shape) == ("x", "ufix16", (1, 1, 8, WIDTH))
    assert tensor.scale == pytest.approx(SCALE)
    assert tensor.offset == -ZERO_POINT
    (tensor,) = graph.outputs
    assert (tensor.name, tensor.dtype, tensor.shape) == ("y", "ufix16", (1, WIDTH, 1, 8))
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize("make", [make_float_graphs, make_quantized_graphs])
def test_two_folders_give_the_same_bytes(tmp_path: Path, make: type) -> None:
    outputs = []
    for name in ("one", "quite_another_place"):
        graphs = make(tmp_path / name)
        outputs.append(tmp_path / name / "decode.bin")
        compile_graph(graphs["decode"], "decode", SM8650, outputs[-1])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_the_renamed_graph_runs_on_the_emulator(tmp_path: Path) -> None:
    model = make_quantized_graphs(tmp_path)["prefill"]
    compile_graph(model, "prefill", SM8650, tmp_path / "prefill.bin")
    generator = np.random.default_rng(1)
    codes = ZERO_POINT + generator.normal(0, 5000, (1, 1, 8, WIDTH)).clip(-30000, 30000)
    codes.astype("<u2").tofile(tmp_path / "x.raw")
    with Emulator(tmp_path / "prefill.bin") as emulator:
        (graph,) = emulator.info.graphs
        emulator.infer(
            graph.name,
            {"x": tmp_path / "x.raw"},
            tmp_path / "result",
            native_inputs=True,
            native_outputs=True,
        )
    found = np.fromfile(tmp_path / "result" / "y.raw", "<u2").astype(float)
    (expected,) = InferenceSession(model).run(None, {"x": codes.astype(np.uint16)})
    # HTP computes the norm in another way than onnxruntime, to a few codes of 65536.
    assert np.abs(found - expected.ravel()).max() <= 16


def test_an_operator_left_outside_is_named(tmp_path: Path) -> None:
    graphs = make_float_graphs(tmp_path / "graphs", odd_operator="Acosh")
    output = tmp_path / "out" / "decode.bin"
    output.parent.mkdir()
    output.write_bytes(b"an earlier one")
    with pytest.raises(SnapbakeError, match=r"decode.onnx .* QNN refuses odd_one \(Acosh\); "):
        compile_graph(graphs["decode"], "decode", SM8650, output)
    assert output.read_bytes() == b"an earlier one"
    assert list(output.parent.iterdir()) == [output]


def test_a_chip_without_floating_point_refuses_by_operators(tmp_path: Path) -> None:
    graphs = make_float_graphs(tmp_path)
    with pytest.raises(SnapbakeError, match=r"norm0 \(RMSNormalization\), conv0 \(Conv\); rewrite"):
        compile_graph(graphs["decode"], "decode", HtpTarget(68, 73, 4), tmp_path / "x.bin")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (HtpTarget(57, 79, 8), r"is for soc_model 57 \(v75\) and soc_model 57 \(v79\) was asked"),
        (HtpTarget(98, 75, 8), r"QNN does not know this soc_model"),
        (HtpTarget(30, 68, 4), r"Code: 1002 \(QNN says this of .* architecture cannot run\)"),
        (HtpTarget(57, 75, 0), r"has 4 MiB of VTCM and optimisation level 3; 0 MiB .* asked for"),
        (HtpTarget(57, 75, 8, 0), r"decode.onnx has 1 MiB of weights and .* may have 0 MiB"),
    ],
)
def test_a_wrong_target_is_found(tmp_path: Path, target: HtpTarget, message: str) -> None:
    graphs = make_float_graphs(tmp_path / "graphs")
    with pytest.raises(SnapbakeError, match=message):
        compile_graph(graphs["decode"], "decode", target, tmp_path / "out" / "x.bin")
    assert not any((tmp_path / "out").glob("**/*"))


def test_an_input_that_does_not_reach_the_binary_is_found(tmp_path: Path) -> None:
    path = make_float_graphs(tmp_path / "graphs")["decode"]
    model = onnx.load(path, load_external_data=False)
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[1].name = "unused"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        SnapbakeError, match=r"unused is float32 \[1, 1, 1, 256\] there and missing in the binary"
    ):
        compile_graph(path, "decode", SM8650, tmp_path / "out" / "x.bin")
    assert not any((tmp_path / "out").iterdir())


def die(*arguments: object) -> None:
    del arguments
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = make_float_graphs(tmp_path / "graphs")
    monkeypatch.setattr(context_binary, "compile_models", die)
    with pytest.raises(
        SnapbakeError, match=r"decode.onnx .* killed by SIGSEGV; its last words: the last words$"
    ):
        compile_graph(graphs["decode"], "decode", SM8650, tmp_path / "out" / "x.bin")
    assert not any((tmp_path / "out").iterdir())


def test_weights_are_counted_as_htp_stores_them(tmp_path: Path) -> None:
    decode = load_graph(make_float_graphs(tmp_path / "float")["decode"])
    assert weight_bytes(decode) == 2 * (WIDTH * WIDTH + WIDTH)
    decode = load_graph(make_quantized_graphs(tmp_path / "quantized")["decode"])
    assert weight_bytes(decode) == pytest.approx(WIDTH * WIDTH, rel=0.03)


def test_the_program(tmp_path: Path) -> None:
    make_float_graphs(tmp_path)
    command = [sys.executable, ROOT / "scripts" / "compile_graph.py", "--model", "decode.onnx"]
    command += ["--soc-model", "57", "--arch", "75", "--vtcm-mb", "8", "--output", "out/decode.bin"]
    done = subprocess.run(
        [*command, "--graph-name", "decode"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert read_htp_binary(tmp_path / "out" / "decode.bin").arch == 75
    done = subprocess.run(
        [*command, "--graph-name", "de code"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: 'de code' cannot name a graph; use letters, digits and underscores, a letter first "
        "and no underscore last\n"
    )


def try_to_compile(
    model: Path, socs: list[Soc], folder: Path
) -> dict[str, tuple[HtpBinary, bytes] | None]:
    """Compile for every chip and return binaries by name; None where the compiler refuses."""
    found: dict[str, tuple[HtpBinary, bytes] | None] = {}
    for soc in socs:
        place = folder / soc.name
        place.mkdir(parents=True)
        target = HtpTarget(soc.soc_model, soc.arch, soc.vtcm_mb)
        try:
            context_binary.compile_models([model], target, place)
        except SnapbakeError:
            found[soc.name] = None
        else:
            (path,) = place.glob("*.bin")
            found[soc.name] = describe(path), path.read_bytes()
    return found


@pytest.mark.slow
def test_the_table_of_chips_is_what_the_compiler_knows(tmp_path: Path) -> None:
    socs = load_socs(ROOT / "config" / "socs.yaml")
    quantized = make_quantized_graphs(tmp_path / "quantized")["decode"]
    compiled = call_in_child(try_to_compile, quantized, list(socs.values()), tmp_path / "q")
    for name, soc in socs.items():
        found = compiled[name]
        if found is None:
            assert soc.graph_limit_mb is None, name
            continue
        binary, content = found
        (settings,) = binary.settings.values()
        assert (binary.info.soc_model, binary.arch) == (soc.soc_model, soc.arch)
        assert settings.vtcm_mb == soc.vtcm_mb, name
        # The compiler's own settings, as text in the binary.
        assert f"soc_type={soc.part};".encode() in content
        assert f"memory_alloc_limit={soc.graph_limit_mb};".encode() in content, name
    floating = make_float_graphs(tmp_path / "float")["decode"]
    computed = call_in_child(try_to_compile, floating, list(socs.values()), tmp_path / "f")
    # The compiler finalises no graph at all in floating point for v68, whatever the operators say.
    for name, soc in socs.items():
        if soc.arch > 68:
            assert (computed[name] is not None) == soc.fp16, name
