"""Context binaries of a few kilobytes, compiled by the real toolchain for the tests that read or
run one. The models are compiled in a child process: the provider stays registered in a process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from snapbake.child_process import call_in_child

SHAPE = [1, 16, 4, 4]
VOCABULARY = 10
SCALE, ZERO_POINT = 1e-4, 30000
OUT_SCALE, OUT_ZERO_POINT = 4e-4, 32000


@dataclass(frozen=True)
class TinyBinaries:
    """Context binaries and the models that they were compiled from.

    real: inputs x (float32) and ids (int32), outputs y and c (float32).
    codes: input x and output y in uint16.
    half: input x and output y in float16.
    split: two graphs that share nothing, the second fed by the first.
    shared: two graphs that share their weights, which the emulator cannot load.
    """

    real: Path
    codes: Path
    half: Path
    split: Path
    shared: Path

    @staticmethod
    def model(binary: Path) -> Path:
        """Return the ONNX model of a binary."""
        return binary.with_suffix(".onnx")


def make_tiny_binaries(folder: Path) -> TinyBinaries:
    """Compile all binaries into a folder, unless it is there; takes about three seconds."""
    binaries = TinyBinaries(
        *(folder / f"{name}.bin" for name in ("real", "codes", "half", "split", "shared"))
    )
    if folder.exists():
        return binaries
    folder.mkdir()
    for name, model in {
        "real": _real_model(),
        "codes": _codes_model(),
        "half": _half_model(),
        "split": _split_model(),
        "shared": _real_model(),
        "shared2": _real_model(),
    }.items():
        onnx.save(model, folder / f"{name}.onnx")
    for names in (["real"], ["codes"], ["half"], ["split"], ["shared", "shared2"]):
        call_in_child(
            _compile, [folder / f"{name}.onnx" for name in names], folder / f"{names[0]}.bin"
        )
    return binaries


def _compile(models: Sequence[Path], binary: Path) -> None:
    import onnxruntime
    import onnxruntime_qnn

    name = onnxruntime_qnn.get_ep_name()
    onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == name]
    kept = []
    for model in models:
        options = onnxruntime.SessionOptions()
        wrapper = model.with_suffix(".context.onnx")
        entries = {
            "ep.context_enable": "1",
            "ep.context_file_path": str(wrapper),
            "ep.context_embed_mode": "0",
        }
        if len(models) > 1:
            entries["ep.share_ep_contexts"] = "1"
        if len(models) > 1 and model == models[-1]:
            entries["ep.stop_share_ep_contexts"] = "1"
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        options.add_provider_for_devices(
            devices,
            {
                "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
                "soc_model": "57",
                "htp_arch": "75",
                "enable_htp_fp16_precision": "1",
                "enable_htp_weight_sharing": str(int(len(models) > 1)),
            },
        )
        kept.append(onnxruntime.InferenceSession(model, options))
    models[0].with_suffix(".context_qnn.bin").rename(binary)


def _real_model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    return _model(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"]),
            helper.make_node("Gather", ["table", "ids"], ["row"], axis=0),
            helper.make_node("Add", ["c", "row"], ["y"]),
        ],
        [_value("x", TensorProto.FLOAT, SHAPE), _value("ids", TensorProto.INT32, [1])],
        [_value("y", TensorProto.FLOAT, SHAPE), _value("c", TensorProto.FLOAT, SHAPE)],
        {
            "w": random.standard_normal((16, 16, 1, 1)).astype(np.float32),
            "b": random.standard_normal(16).astype(np.float32),
            "table": random.standard_normal((VOCABULARY, 16, 1, 1)).astype(np.float32),
        },
    )


def _codes_model() -> onnx.ModelProto:
    random = np.random.default_rng(1)
    return _model(
        [
            helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real_x"]),
            helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["real_w"], axis=0),
            helper.make_node("Conv", ["real_x", "real_w"], ["c"]),
            helper.make_node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["y"]),
        ],
        [_value("x", TensorProto.UINT16, SHAPE)],
        [_value("y", TensorProto.UINT16, SHAPE)],
        {
            "w": random.integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            "w_scale": np.full(16, 0.01, np.float32),
            "w_zero": np.zeros(16, np.int8),
            "x_scale": np.float32(SCALE),
            "x_zero": np.uint16(ZERO_POINT),
            "y_scale": np.float32(OUT_SCALE),
            "y_zero": np.uint16(OUT_ZERO_POINT),
        },
    )


def _half_model() -> onnx.ModelProto:
    random = np.random.default_rng(2)
    return _model(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [_value("x", TensorProto.FLOAT16, SHAPE)],
        [_value("y", TensorProto.FLOAT16, SHAPE)],
        {"w": random.standard_normal((16, 16, 1, 1)).astype(np.float16)},
    )


def _split_model() -> onnx.ModelProto:
    """Two convolutions around an Erf, which HTP has not: a graph before it and one after it."""
    random = np.random.default_rng(3)
    return _model(
        [
            helper.make_node("Conv", ["x", "w"], ["before"]),
            helper.make_node("Erf", ["before"], ["after"]),
            helper.make_node("Conv", ["after", "w"], ["y"]),
        ],
        [_value("x", TensorProto.FLOAT, SHAPE)],
        [_value("y", TensorProto.FLOAT, SHAPE)],
        {"w": random.standard_normal((16, 16, 1, 1)).astype(np.float32)},
    )


def _value(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, Any],
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
