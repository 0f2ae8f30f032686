"""The fp16 recipe: the contract graphs with every real number in 16 bits, borders included."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from snapbake.errors import SnapbakeError
from snapbake.external_data import ExternalWeights, point_to
from snapbake.files import atomic_path, require_disk_space, write_json

MASK_VALUE = -1000.0  # what Genie adds to the scores of hidden positions in float graphs
_LARGEST = float(np.finfo(np.float16).max)


def convert_fp16(prefill: Path, decode: Path, output: Path) -> None:
    """Write prefill.onnx, decode.onnx, their weights.data and encodings.json into `output`.

    The two fp32 contract graphs share one weight file; so do the fp16 ones. A weight that fp16
    cannot hold is refused by name: the HTP would compute with infinity.
    """
    models = {
        "prefill": onnx.load(prefill, load_external_data=False),
        "decode": onnx.load(decode, load_external_data=False),
    }
    source = ExternalWeights(models["prefill"], prefill.parent)
    require_disk_space(output, source.total_bytes())
    data = output / "weights.data"
    with atomic_path(data) as temporary, temporary.open("wb") as stream:
        places = {}
        for name in source.names():
            value = source[name]
            largest = float(np.abs(value).max())
            if largest > _LARGEST:
                raise SnapbakeError(
                    f"the weight {name} reaches {largest:.3g}, fp16 holds {_LARGEST:.0f}; "
                    "use a quantised recipe such as w8a16 for this model"
                )
            half = value.astype(np.float16)
            places[name] = (stream.tell(), half.nbytes)
            stream.write(half.data)
    for graph, model in models.items():
        _retype(model)
        for tensor in model.graph.initializer:
            if tensor.name in places:
                point_to(tensor, data.name, *places[tensor.name])
        with atomic_path(output / f"{graph}.onnx") as temporary:
            onnx.save(model, temporary)
    borders = [*models["decode"].graph.input, *models["decode"].graph.output]
    encodings = {value.name: {"dtype": _border_type(value)} for value in borders}
    write_json(output / "encodings.json", {"tensors": encodings, "mask_value": MASK_VALUE})


def _border_type(value: onnx.ValueInfoProto) -> str:
    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name


def _retype(model: onnx.ModelProto) -> None:
    """Turn every fp32 tensor of a model into fp16, by type only."""
    graph = model.graph
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.data_type = TensorProto.FLOAT16
