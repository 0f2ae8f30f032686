"""The range of every activation over the calibration records, one for both graphs together.

The graphs run as an application runs them (`decoding`), prefill chunks first, then single tokens,
with each activation's smallest and largest value as extra outputs. A sample's activations are gone
when its step is done, so memory does not grow with the number of records.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

from snapbake.cpu_sessions import cpu_options
from snapbake.decoding import Decoder, Feeds, GraphPair
from snapbake.errors import SnapbakeError

Ranges = dict[str, tuple[float, float]]

# How many tokens at the end of each record go through the decode graph.
DECODE_STEPS = 4
# Added to the scores of positions that must not be seen: in fp32 their share is exactly 0.
MASK_VALUE = -10000.0
# What lies further below the largest value of its row has no share in a softmax. In 16 bits 20
# would do; the rest is room for rows whose values all lie lower than any that was observed.
_SOFTMAX_DEPTH = 40.0


class RangeObserver:
    """Runs the two fp32 graphs and keeps the smallest and largest value of every float tensor.

    What a Softmax reads counts only as far down as it has a share in the result, so hidden
    positions do not stretch its range: they may saturate.
    """

    def __init__(self, graphs: Mapping[str, Path], threads: int) -> None:
        self._sessions = {name: _observed(path, threads) for name, path in graphs.items()}
        self.ranges: Ranges = {}

    def run(self, graph: str, feeds: Feeds) -> dict[str, NDArray]:
        """Run one step, widen the ranges by it and return the graph's own outputs."""
        session, watched, own = self._sessions[graph]
        for name, value in feeds.items():
            if value.dtype == np.float32:
                self._widen(name, float(value.min()), float(value.max()))
        # Only dense tensors leave these graphs.
        results = cast(list[NDArray], session.run(None, feeds))
        extremes = results[len(own) :]
        for index, (name, depth) in enumerate(watched.items()):
            self._widen(name, float(extremes[2 * index]) - depth, float(extremes[2 * index + 1]))
        return dict(zip(own, results, strict=False))

    def _widen(self, name: str, low: float, high: float) -> None:
        if not (np.isfinite(low) and np.isfinite(high)):
            raise SnapbakeError(
                f"the activation {name} is not finite in fp32 on the calibration records; "
                "check the checkpoint, its logits cannot be right"
            )
        old_low, old_high = self.ranges.get(name, (low, high))
        self.ranges[name] = (min(low, old_low), max(high, old_high))


def _observed(path: Path, threads: int) -> tuple[InferenceSession, dict[str, float], list[str]]:
    """Open a graph that also returns the smallest and largest value of each float tensor.

    Returns the session, the tensors that it computes and the names of its own outputs. For what a
    Softmax reads it returns the smallest of the rows' largest values in place of the smallest; a
    tensor comes with how far below that its range reaches.
    """
    model = onnx.load(path, load_external_data=False)
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in [*model.graph.value_info, *model.graph.output]
    }
    own = [value.name for value in model.graph.output]
    nodes = list(model.graph.node)
    depths = {node.input[0]: _SOFTMAX_DEPTH for node in nodes if node.op_type == "Softmax"}
    watched = {
        name: depths.get(name, 0.0)
        for node in nodes
        for name in node.output
        if kinds.get(name) == TensorProto.FLOAT
    }
    last_axis = numpy_helper.from_array(np.array([-1], np.int64), "last axis")
    model.graph.initializer.append(last_axis)
    for name in watched:
        lows = name
        if name in depths:
            lows = f"{name}:rows"
            model.graph.node.append(
                helper.make_node("ReduceMax", [name, last_axis.name], [lows], name=lows)
            )
        for kind, source in (("ReduceMin", lows), ("ReduceMax", name)):
            output = f"{name}:{kind}"
            model.graph.node.append(
                helper.make_node(kind, [source], [output], name=output, keepdims=0)
            )
            model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    options = cpu_options(threads)
    # The graph is read from memory, its weights from the folder of the file.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    session = InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session, watched, own


def observe_ranges(
    graphs: Mapping[str, Path], pair: GraphPair, records: Sequence[Sequence[int]], threads: int
) -> Ranges:
    """Run the records (token ids) through "prefill" and "decode"; return each tensor's range.

    The last tokens of a record go through the decode graph. A prefill chunk that the record does
    not fill is filled with the record's own first tokens, so that no padding widens a range. The
    mask of `pair` must hide exactly (`MASK_VALUE`).
    """
    if not records:
        raise SnapbakeError("there are no calibration records; choose some with select_records")
    observer = RangeObserver(graphs, threads)
    started = time.monotonic()
    chunk = pair.prefill_tokens
    for number, ids in enumerate(records, start=1):
        decoder = Decoder(pair, observer.run)
        body, tail = list(ids[:-DECODE_STEPS]), list(ids[-DECODE_STEPS:])
        for start in range(0, len(body), chunk):
            # Where a whole chunk does not fit any more, the last one reads some tokens again.
            decoder.length = min(start, pair.context - chunk)
            valid = body[decoder.length : decoder.length + chunk]
            filled = (valid + list(ids) * chunk)[:chunk]
            decoder.accept(observer.run("prefill", decoder.feeds("prefill", filled)), len(valid))
        for token in tail:
            decoder.step("decode", [token])
        if number % 10 == 0 or number == len(records):
            seconds = time.monotonic() - started
            print(f"calibrated {number}/{len(records)} records in {seconds:.0f} s", file=sys.stderr)
    return observer.ranges
