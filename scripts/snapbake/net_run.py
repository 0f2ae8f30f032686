"""What qnn-net-run does, for any QNN context binary, on the HTP emulator of the QNN libraries.

An input list has one inference a line: `name:=path` pairs separated by blanks, or a bare path for
a graph with one input. A first line `%output ...` (or `#output ...`) chooses the outputs that are
written; without it all are. Relative paths are relative to the working folder. Everything that
can be wrong with a list or its files is refused before the emulator starts.
"""

import difflib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from snapbake import emulator, raw_files
from snapbake.child_process import Child, ChildDiedError
from snapbake.emulator import Inference
from snapbake.errors import SnapbakeError
from snapbake.files import require_disk_space, require_file
from snapbake.qnn_system import BinaryInfo, GraphInfo, read_context_binary
from snapbake.qnn_types import QnnError

_P = ParamSpec("_P")
_R = TypeVar("_R")

# In place of a list, on the command line of qnn-net-run: this graph is not run.
SKIP: Final = "__"
# What to do about a failure at loading and at executing.
_LOADING_WAY_OUT: Final = (
    "graphs that share their weights cannot be loaded on this platform: run the binaries of one "
    "graph each instead; any other binary is damaged or of another QNN release: build it again"
)
_EXECUTING_WAY_OUT: Final = (
    "look for inputs out of range (a token id beyond the vocabulary) and for operators that the "
    "emulator is known to crash in (a quantised MatMul; the same as a 1x1 Conv runs)"
)


@dataclass(frozen=True)
class InputLine:
    """One inference of an input list.

    `number` is its line in the file, from 1; `entries` are its files with their tensors' names,
    None where the line gives a bare path.
    """

    number: int
    entries: tuple[tuple[str | None, Path], ...]


@dataclass(frozen=True)
class InputList:
    """A parsed input list; `outputs` is None when all outputs are wanted."""

    path: Path
    outputs: tuple[str, ...] | None
    lines: tuple[InputLine, ...]


@dataclass(frozen=True)
class Result:
    """A finished inference: its folder of `<tensor>.raw` files and the execution's seconds."""

    graph: str
    folder: Path
    seconds: float


class Emulator:
    """A context binary on the emulator, in a process of its own that ends with `close`.

    `info` is the binary's description. Raises SnapbakeError when the binary cannot be read or the
    machine cannot run it.
    """

    def __init__(self, binary: Path) -> None:
        self.binary = binary
        self.info = read_context_binary(binary)
        self._child = Child()
        self._load_seconds: float | None = None

    def load(self) -> float:
        """Load the binary, which the first inference does otherwise; returns the seconds of it.

        Raises SnapbakeError when the emulator refuses the binary or crashes.
        """
        if self._load_seconds is None:
            names = _listed(graph.name for graph in self.info.graphs)
            what = f"loading {self.binary} (with {names})"
            self._load_seconds = self._call(what, _LOADING_WAY_OUT, emulator.load, self._path())
        return self._load_seconds

    def infer(
        self,
        graph: str,
        inputs: Mapping[str, Path],
        folder: Path,
        *,
        native_inputs: bool,
        native_outputs: bool,
        outputs: Sequence[str] | None = None,
    ) -> float:
        """Run a graph on files and write `<tensor>.raw` into `folder`, which is made if missing.

        `inputs` are files by tensor name; `outputs` chooses what is written, None is all. What the
        files hold is told by `native_inputs` and `native_outputs` (raw_files). Returns the seconds
        of the execution. Raises SnapbakeError for anything wrong with the files, and when the
        emulator refuses or crashes; what `folder` holds then is not a result.
        """
        where = f"the run of graph {graph}"
        info = next((each for each in self.info.graphs if each.name == graph), None)
        if info is None:
            raise SnapbakeError(
                f"{self.binary} has no graph {graph}; it has "
                f"{_listed(each.name for each in self.info.graphs)}"
            )
        chosen = _chosen_outputs(info, outputs, where, native=native_outputs)
        _check_inputs(info, inputs, where, native=native_inputs)
        return self._infer(Inference(graph, inputs, chosen, folder, native_inputs, native_outputs))

    def _infer(self, inference: Inference) -> float:
        self.load()
        inference.folder.mkdir(parents=True, exist_ok=True)
        # The child keeps the working folder that it was started in.
        absolute = replace(
            inference,
            inputs={name: path.absolute() for name, path in inference.inputs.items()},
            folder=inference.folder.absolute(),
        )
        what = f"running graph {inference.graph} of {self.binary}"
        return self._call(what, _EXECUTING_WAY_OUT, emulator.infer, self._path(), absolute)

    def _path(self) -> Path:
        return self.binary.absolute()

    def close(self) -> None:
        """End the emulator's process."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self,
        what: str,
        way_out: str,
        function: Callable[_P, _R],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        try:
            return self._child.call(function, *args, **kwargs)
        except ChildDiedError as death:
            raise SnapbakeError(f"{what} crashed: the HTP emulator {death}; {way_out}") from death
        except QnnError as error:
            words = self._child.last_words()
            told = f"; its last words: {words}" if words else ""
            raise SnapbakeError(f"{what} failed: {error}{told}; {way_out}") from error


def parse_input_list(path: Path) -> InputList:
    """Read an input list, whose form the module's description tells.

    Raises SnapbakeError with file and line for a missing or empty list and a line that is none.
    """
    require_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SnapbakeError(f"{path} is not UTF-8 text; an input list names files") from error
    outputs: tuple[str, ...] | None = None
    lines: list[InputLine] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if words[0][0] in "%#":
            if outputs is not None or lines:
                raise SnapbakeError(
                    f"line {number} of {path} chooses outputs; only the first line can do so"
                )
            outputs = tuple(name for word in words if (name := word.lstrip("%#")))
            continue
        lines.append(InputLine(number, tuple(_entry(word, number, path) for word in words)))
    if not lines:
        raise SnapbakeError(
            f"{path} names no input files; write one line an inference, `name:=path` for each input"
        )
    return InputList(path, outputs, tuple(lines))


def _entry(word: str, number: int, path: Path) -> tuple[str | None, Path]:
    name, separator, file = word.partition(":=")
    if not separator:
        return None, Path(word)
    if not name or not file:
        raise SnapbakeError(
            f"line {number} of {path} has {word!r}; write `name:=path` without blanks in it"
        )
    return name, Path(file)


def run_binary(
    binary: Path,
    lists: Sequence[InputList | None],
    output_dir: Path,
    *,
    native_inputs: bool = False,
    native_outputs: bool = False,
    report: Callable[[str], None],
) -> list[Result]:
    """Run the inferences of input lists, one list a graph in the binary's order, None skips one.

    Writes `output_dir/Result_<n>/<tensor>.raw`, n counting from 0 in each list; a binary of
    several graphs gets a folder a graph in between. Earlier results of these graphs are replaced
    when all inferences have ended well, and left alone otherwise. `report` gets a line of progress
    at each step. Raises SnapbakeError: before the emulator starts for whatever can be known then.
    """
    with Emulator(binary) as loaded:
        todo: list[tuple[Inference, str]] = []
        needed = 0
        for graph, input_list in _chosen_graphs(loaded.info, lists, binary):
            chosen = _chosen_outputs(
                graph, input_list.outputs, str(input_list.path), native=native_outputs
            )
            parent = Path(raw_files.clean_name(graph.name) if len(loaded.info.graphs) > 1 else "")
            total = len(input_list.lines)
            needed += total * sum(
                raw_files.file_size(tensor, native=native_outputs)
                for tensor in graph.outputs
                if tensor.name in chosen
            )
            for index, line in enumerate(input_list.lines):
                where = f"line {line.number} of {input_list.path}"
                inputs = _bind(line, graph, where)
                _check_inputs(graph, inputs, where, native=native_inputs)
                folder = parent / f"Result_{index}"
                todo.append(
                    (
                        Inference(
                            graph.name, inputs, chosen, folder, native_inputs, native_outputs
                        ),
                        f"{graph.name}: inference {index + 1} of {total}",
                    )
                )
        require_disk_space(output_dir, needed)
        results = []
        with _staging_folder(output_dir) as staging:
            report(f"{binary.name}: loaded in {loaded.load():.1f} s")
            for inference, label in todo:
                seconds = loaded._infer(replace(inference, folder=staging / inference.folder))
                report(f"{label} took {seconds:.1f} s")
                results.append(Result(inference.graph, output_dir / inference.folder, seconds))
            for parent in {inference.folder.parent for inference, _ in todo}:
                _replace_results(staging / parent, output_dir / parent)
    return results


@contextmanager
def _staging_folder(output_dir: Path) -> Iterator[Path]:
    """Yield a folder in `output_dir`, gone at the end with what is left in it.

    When the block raises, an `output_dir` that was made for it is gone as well.
    """
    made = not output_dir.exists()
    output_dir.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".net_run.", dir=output_dir))
    try:
        yield staging
    except BaseException:
        shutil.rmtree(output_dir if made else staging)
        raise
    shutil.rmtree(staging)


def _replace_results(source: Path, target: Path) -> None:
    """Move the result folders of `source` into `target`, in place of all that are there."""
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        if re.fullmatch(r"Result_\d+", old.name):
            shutil.rmtree(old)
    for new in source.iterdir():
        new.rename(target / new.name)


def _chosen_graphs(
    info: BinaryInfo, lists: Sequence[InputList | None], binary: Path
) -> list[tuple[GraphInfo, InputList]]:
    if len(lists) != len(info.graphs):
        raise SnapbakeError(
            f"{binary} has {_counted(len(info.graphs), 'graph')} "
            f"({_listed(graph.name for graph in info.graphs)}) and {len(lists)} "
            f"{'was' if len(lists) == 1 else 'were'} given an input list; give one list a graph "
            f"in this order, {SKIP} in place of a list to leave a graph out"
        )
    chosen = [(graph, each) for graph, each in zip(info.graphs, lists, strict=True) if each]
    if not chosen:
        raise SnapbakeError(f"all graphs of {binary} are left out; give an input list for one")
    return chosen


def _bind(line: InputLine, graph: GraphInfo, where: str) -> dict[str, Path]:
    """Return the files of a line by their tensors' names."""
    if len(line.entries) == 1 and len(graph.inputs) == 1 and line.entries[0][0] is None:
        return {graph.inputs[0].name: line.entries[0][1]}
    files: dict[str, Path] = {}
    for name, file in line.entries:
        if name is None:
            raise SnapbakeError(
                f"{where} gives {file} without a tensor's name; graph {graph.name} has several "
                f"inputs, so write `name:=path` for {_listed(each.name for each in graph.inputs)}"
                if len(graph.inputs) > 1
                else f"{where} gives {_counted(len(line.entries), 'file')} and graph {graph.name} "
                f"has one input, {graph.inputs[0].name}; write one inference a line"
            )
        if name in files:
            raise SnapbakeError(f"{where} gives a file for {name} twice; leave one of them out")
        files[name] = file
    return files


def _check_inputs(
    graph: GraphInfo, inputs: Mapping[str, Path], where: str, *, native: bool
) -> None:
    """Raise SnapbakeError unless `inputs` has a fitting file for every input and no other."""
    known = {tensor.name for tensor in graph.inputs}
    for name in inputs:
        if name not in known:
            raise SnapbakeError(_unknown(name, known, f"{where}: graph {graph.name}", "input"))
    missing = [tensor.name for tensor in graph.inputs if tensor.name not in inputs]
    if missing:
        raise SnapbakeError(
            f"{where} gives no file for {_listed(missing)} of graph {graph.name}; "
            "add `name:=path` for each"
        )
    for tensor in graph.inputs:
        try:
            raw_files.check_file(inputs[tensor.name], tensor, native=native)
        except SnapbakeError as error:
            raise SnapbakeError(f"{where}: {error}") from error


def _chosen_outputs(
    graph: GraphInfo, names: Sequence[str] | None, where: str, *, native: bool
) -> tuple[str, ...]:
    """Return the names of the outputs to write, after a check that they can be written."""
    known = [tensor.name for tensor in graph.outputs]
    chosen = tuple(known if names is None else names)
    for name in chosen:
        if name not in known:
            raise SnapbakeError(_unknown(name, known, f"{where}: graph {graph.name}", "output"))
    if not chosen:
        raise SnapbakeError(f"{where} chooses no output; name one of {_listed(known)}")
    files: dict[str, str] = {}
    for tensor in graph.outputs:
        raw_files.check_writable(tensor, native=native)
        file = raw_files.file_name(tensor)
        if file in files:
            raise SnapbakeError(
                f"the outputs {files[file]} and {tensor.name} of graph {graph.name} would both be "
                f"written to {file}; rename one of them in the model"
            )
        files[file] = tensor.name
    return chosen


def _unknown(name: str, known: Iterable[str], where: str, kind: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"its {kind}s are {_listed(sorted(known))}"
    return f"{where} has no {kind} {name}; {hint}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _listed(names: Iterable[str]) -> str:
    """Join names for a message; of many only the first ones."""
    names = list(names)
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
