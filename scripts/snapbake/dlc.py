"""DLC files, the model format of today's QAIRT tools, written by onnxruntime-qnn."""

import mmap
import re
from pathlib import Path
from typing import Final

from snapbake import graph_names, qnn_library, qnn_session
from snapbake.child_process import ChildDiedError, call_in_child
from snapbake.errors import SnapbakeError
from snapbake.files import atomic_path
from snapbake.onnx_files import external_tensors, load_graph, require_external_data

_TIME: Final = re.compile(rb'"timestamp": "\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"')
_NO_TIME: Final = b'"timestamp": "1970-01-01 00:00:00 UTC"'


def write_dlc(model: Path, graph_name: str, output: Path) -> None:
    """Write an ONNX graph with weights and encodings as a DLC for any chip.

    The graph's name in it is `graph_name` padded with underscores (graph_names.padded_name). The
    bytes depend on the model, its file's name and the graph name, not on the folder. Raises
    SnapbakeError when operators are left outside and when the writer fails or crashes.
    """
    graph_names.require_graph_name(graph_name)
    graph = load_graph(model)
    require_external_data(graph, model)
    # Floating-point weights keep their 32 bits.
    size = sum(place.length for _, place in external_tensors(graph))
    with qnn_session.work_folder(output, size) as folder:
        try:
            call_in_child(_write, model, folder)
        except ChildDiedError as death:
            raise SnapbakeError(f"the DLC writer for {model} {death}") from death
        files = sorted(folder.glob("*.dlc"))
        if len(files) != 1:
            raise SnapbakeError(
                f"onnxruntime wrote {len(files)} DLC files for {model}, not one: the graph falls "
                "into parts; remove what connects nothing or splits it"
            )
        # The file's name is that of the graph.
        given_name = files[0].stem
        name = graph_names.padded_name(graph_name, len(given_name))
        graph_names.rename_in_file(files[0], {given_name: name})
        _fix_times(files[0])
        with atomic_path(output) as temporary:
            files[0].replace(temporary)


def _fix_times(path: Path) -> None:
    """Set the times at which the file's records say they were made to one that never changes."""
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
        for time in list(_TIME.finditer(content)):
            content[time.start() : time.end()] = _NO_TIME


def _write(model: Path, folder: Path) -> None:
    options = {
        "backend_path": str(qnn_library.library_folder() / "libQnnIr.so"),
        "dump_qnn_ir_dlc": "1",
        "dump_qnn_ir_dlc_dir": str(folder),
    }
    qnn_session.create_session(model, "a DLC", options, {})
