"""Contract graphs in onnxruntime on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

from snapbake.cpu_sessions import cpu_options
from snapbake.decoding import Feeds


class CpuRunner:
    """Runs graphs by name; all stay open. Use `run` as a `decoding.Run`."""

    def __init__(self, graphs: Mapping[str, Path], threads: int) -> None:
        options = cpu_options(threads)
        self._sessions = {
            name: InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for name, path in graphs.items()
        }

    def run(self, graph: str, feeds: Feeds) -> dict[str, NDArray]:
        """Return the outputs of a graph by name, as stored."""
        session = self._sessions[graph]
        names = [output.name for output in session.get_outputs()]
        # Only dense tensors leave these graphs.
        return dict(zip(names, cast(list[NDArray], session.run(names, feeds)), strict=True))
