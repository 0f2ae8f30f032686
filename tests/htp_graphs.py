"""Small ONNX graphs for the compiler: a prefill and a decode graph whose weights are one file.

RMSNorm and a 1x1 Conv with 256 channels, once in float32 and once quantised: uint16 activations,
int8 weights, uint16 at the border. Prefill takes 8 tokens, decode one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WIDTH = 256
TOKENS = {"prefill": 8, "decode": 1}
# Of every activation of the quantised graphs: real value = (code - 32768) x SCALE.
SCALE = 2e-4
ZERO_POINT = 32768

_DATA_FILE = "weights.data"
_ALIGNMENT = 4096


def make_float_graphs(folder: Path, odd_operator: str | None = None) -> dict[str, Path]:
    """Write both graphs in float32; `odd_operator` comes last, as the node `odd_one`."""
    generator = np.random.default_rng(0)
    weights = {
        "norm": generator.uniform(0.5, 2.0, WIDTH).astype(np.float32),
        "weight": _conv_weight(generator).astype(np.float32),
    }
    paths = {}
    for graph, tokens in TOKENS.items():
        nodes = [
            helper.make_node(
                "RMSNormalization", ["x", "norm"], ["normed"], name="norm0", epsilon=1e-5
            ),
            helper.make_node("Transpose", ["normed"], ["columns"], name="t0", perm=[0, 3, 1, 2]),
            helper.make_node(
                "Conv",
                ["columns", "weight"],
                ["conv" if odd_operator else "y"],
                name="conv0",
                kernel_shape=[1, 1],
            ),
        ]
        if odd_operator:
            nodes.append(helper.make_node(odd_operator, ["conv"], ["y"], name="odd_one"))
        paths[graph] = _save(folder / f"{graph}.onnx", nodes, weights, tokens, TensorProto.FLOAT)
    return paths


def make_quantized_graphs(folder: Path, output_scale: float = SCALE) -> dict[str, Path]:
    """Write both graphs quantised; `output_scale` is that of the output `y`."""
    generator = np.random.default_rng(0)
    weights: dict[str, NDArray] = {
        "norm": np.full(WIDTH, 65535, np.uint16),
        "norm_scale": np.array(1 / 65535, np.float32),
        "norm_zero": np.array(0, np.uint16),
        "weight": np.round(_conv_weight(generator) * 500).clip(-127, 127).astype(np.int8),
        "weight_scale": np.full(WIDTH, 1 / 500, np.float32),
        "weight_zero": np.zeros(WIDTH, np.int8),
        "scale": np.array(SCALE, np.float32),
        "zero": np.array(ZERO_POINT, np.uint16),
        "y_scale": np.array(output_scale, np.float32),
    }
    paths = {}
    for graph, tokens in TOKENS.items():
        nodes = [
            _dequantize("x", "x_real", "scale", "zero"),
            _dequantize("norm", "norm_real", "norm_scale", "norm_zero"),
            _dequantize("weight", "weight_real", "weight_scale", "weight_zero", axis=0),
            helper.make_node(
                "RMSNormalization", ["x_real", "norm_real"], ["n"], name="norm0", epsilon=1e-5
            ),
            _quantize("n", "n_code", "scale"),
            _dequantize("n_code", "n_real", "scale", "zero"),
            helper.make_node("Transpose", ["n_real"], ["t"], name="t0", perm=[0, 3, 1, 2]),
            _quantize("t", "t_code", "scale"),
            _dequantize("t_code", "t_real", "scale", "zero"),
            helper.make_node(
                "Conv", ["t_real", "weight_real"], ["c"], name="conv0", kernel_shape=[1, 1]
            ),
            _quantize("c", "y", "y_scale"),
        ]
        paths[graph] = _save(folder / f"{graph}.onnx", nodes, weights, tokens, TensorProto.UINT16)
    return paths


def _conv_weight(generator: np.random.Generator) -> NDArray:
    return generator.standard_normal((WIDTH, WIDTH, 1, 1)) / 16


def _quantize(real: str, code: str, scale: str) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [real, scale, "zero"], [code], name=f"q_{code}")


def _dequantize(
    code: str, real: str, scale: str, zero: str, axis: int | None = None
) -> onnx.NodeProto:
    axes: dict[str, Any] = {} if axis is None else {"axis": axis}
    return helper.make_node(
        "DequantizeLinear", [code, scale, zero], [real], name=f"dq_{code}", **axes
    )


def _save(
    path: Path, nodes: list[onnx.NodeProto], weights: dict[str, NDArray], tokens: int, kind: int
) -> Path:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", kind, [1, 1, tokens, WIDTH])],
        [helper.make_tensor_value_info("y", kind, [1, WIDTH, 1, tokens])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    data = b""
    for tensor in model.graph.initializer:
        if not tensor.dims:
            continue
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", _DATA_FILE),
            ("offset", len(data)),
            ("length", len(content)),
        ):
            tensor.external_data.add(key=key, value=str(value))
        data += content.ljust(-(-len(content) // _ALIGNMENT) * _ALIGNMENT, b"\0")
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / _DATA_FILE).write_bytes(data)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
