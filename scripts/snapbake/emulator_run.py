"""The recipe's binaries on the HTP emulator, used as an application uses them.

Every step is one inference of qnn-net-run's kind: files in, files out, bound by name. The KV cache
that a step returns goes into the next one, from prefill chunks into decode steps.
"""

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from snapbake.decoding import Border, Decoder, Feeds, read_pair
from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.files import read_json, sha256_file, write_json
from snapbake.net_run import Emulator
from snapbake.qnn_system import GraphInfo
from snapbake.raw_files import file_name, native_type, read_tensor, write_tensor
from snapbake.reading import decoded_cache, read_text, stacked_cache
from snapbake.safetensors_file import stored_identity
from snapbake.subset import load_subset, save_arrays


class EmulatorRunner:
    """Runs graphs by name on the emulator; use `run` as a `decoding.Run`.

    Files go to `folder`. The first step of each graph stays there in qnn-net-run's layout, so that
    the same inference can be repeated elsewhere: {graph}/input_list.txt (paths relative to its own
    folder), {graph}/inputs/*.raw and {graph}/Result_0/*.raw. Later steps are only passed on.
    """

    def __init__(
        self, binaries: Mapping[str, Path], borders: Mapping[str, Border], folder: Path
    ) -> None:
        """`borders` say how tensors are stored; each binary must have these and no others."""
        self._binaries, self._borders, self._folder = binaries, borders, folder
        self._emulators: dict[str, Emulator] = {}
        self.steps: list[dict[str, Any]] = []
        self.load_seconds: dict[str, float] = {}
        self.label: dict[str, Any] = {}  # what the steps to come belong to

    def run(self, graph: str, feeds: Feeds) -> dict[str, NDArray]:
        """Run one step and return the outputs in stored form."""
        first = graph not in self._emulators
        emulator = self._open(graph) if first else self._emulators[graph]
        (info,) = emulator.info.graphs
        _require_shapes(self._binaries[graph], info, feeds)
        root = self._folder / (graph if first else "later")
        inputs: dict[str, Path] = {}
        (root / "inputs").mkdir(parents=True, exist_ok=True)
        for tensor in info.inputs:
            inputs[tensor.name] = root / "inputs" / file_name(tensor)
            write_tensor(inputs[tensor.name], feeds[tensor.name], tensor, native=True)
        if first:
            entries = [f"{name}:={path.relative_to(root)}" for name, path in inputs.items()]
            (root / "input_list.txt").write_text(" ".join(entries) + "\n", encoding="utf-8")
        results = root / "Result_0"
        seconds = emulator.infer(
            info.name, inputs, results, native_inputs=True, native_outputs=True
        )
        self.steps.append({**self.label, "graph": graph, "seconds": round(seconds, 2)})
        print(f"step {len(self.steps)}: {graph} took {seconds:.1f} s", file=sys.stderr, flush=True)
        return {
            tensor.name: read_tensor(results / file_name(tensor), tensor, native=True)
            for tensor in info.outputs
        }

    def _open(self, graph: str) -> Emulator:
        emulator = self._emulators[graph] = Emulator(self._binaries[graph])
        if len(emulator.info.graphs) != 1:
            raise SnapbakeError(
                f"{self._binaries[graph]} holds {len(emulator.info.graphs)} graphs and the "
                "emulator takes one; give the binary of a single graph"
            )
        _require_borders(self._binaries[graph], emulator.info.graphs[0], self._borders)
        self.load_seconds[graph] = emulator.load()
        return emulator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for emulator in self._emulators.values():
            emulator.close()


def _require_borders(binary: Path, graph: GraphInfo, borders: Mapping[str, Border]) -> None:
    """Raise unless the codes of a binary mean what the recipe's encodings say."""
    found = {
        tensor.name: Border(native_type(tensor), tensor.scale, -(tensor.offset or 0))
        for tensor in (*graph.inputs, *graph.outputs)
    }
    for name in sorted(borders.keys() | found.keys()):
        here, there = found.get(name), borders.get(name)
        if here is None or there is None or not _same(here, there):
            raise SnapbakeError(
                f"{binary} has {name} as {here or 'nothing'} and the encodings have it as "
                f"{there or 'nothing'}; give the binaries and the encodings.json of one recipe"
            )


def _same(left: Border, right: Border) -> bool:
    return (left.dtype, left.zero_point) == (right.dtype, right.zero_point) and (
        left.scale == right.scale
        if left.scale is None or right.scale is None
        else math.isclose(left.scale, right.scale, rel_tol=1e-6)
    )


def _require_shapes(binary: Path, graph: GraphInfo, feeds: Feeds) -> None:
    for tensor in graph.inputs:
        given = feeds.get(tensor.name)
        if given is None or given.shape != tensor.shape:
            shape = "nothing" if given is None else list(given.shape)
            raise SnapbakeError(
                f"{binary} takes {tensor.name} as {list(tensor.shape)} and the model, --tokens and "
                f"--context make it {shape}; give what the binary was built with"
            )


def run_emulator(
    binaries: Mapping[str, Path],
    checkpoint: Path,
    encodings: Path,
    reference: Path,
    tokens: int,
    context: int,
    output: Path,
) -> None:
    """Compute the subset with the binaries "prefill" and "decode" into the folder `output`.

    Writes run.json (the steps and their seconds), outputs.npz (logits and caches as real numbers)
    and the first step of each graph in qnn-net-run's layout; all of it or nothing.
    """
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, tokens, context, encodings)
    subset = load_subset(reference)
    arrays: dict[str, NDArray] = {}
    output.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".run.", dir=output))
    try:
        with EmulatorRunner(binaries, pair.borders, staging) as runner:
            for number, reading in enumerate(subset.readings):
                runner.label = {"part": "reading", "record": reading.record}
                logits, decoder = read_text(pair, runner.run, reading.ids)
                arrays[f"reading_{number}_logits"] = logits
                arrays[f"reading_{number}_cache"] = stacked_cache(decoded_cache(pair, decoder))
            answer = subset.answers[0]
            runner.label = {"part": "answer", "record": answer.record}
            chosen = Decoder(pair, runner.run).generate(
                list(answer.prompt), answer.count, subset.stop
            )
            arrays["answer_ids"] = np.array(chosen, np.int64)
        for graph in binaries:
            shutil.rmtree(output / graph, ignore_errors=True)
            (staging / graph).rename(output / graph)
        save_arrays(output / "outputs.npz", arrays)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):
            output.rmdir()  # when nothing came of it, and nothing was there
    write_json(
        output / "run.json",
        {
            "binaries": {
                graph: {"sha256": sha256_file(path), "load_seconds": runner.load_seconds[graph]}
                for graph, path in binaries.items()
            },
            "steps": runner.steps,
            "seconds": round(sum(step["seconds"] for step in runner.steps), 2),
            "weights_sha256": stored_identity(checkpoint / "model.safetensors"),
        },
    )
