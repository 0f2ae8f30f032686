"""Optimum's plain ONNX export of a checkpoint, and the proof that it holds the checkpoint.

Optimum ends well (exit code 0) when tensors were missing and made up, renamed, dropped or taken
from a stale file. So what it wrote is compared with the checkpoint tensor by tensor, value by
value.
"""

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors import safe_open

from snapbake.errors import SnapbakeError
from snapbake.external_data import ExternalWeights
from snapbake.families import DecoderSpec, expected_tensors, read_spec
from snapbake.files import read_json, require_disk_space, require_file
from snapbake.onnx_files import external_tensors, load_graph, require_external_data
from snapbake.optimum_graph import expected_borders, require_borders

MODEL_NAME = "model.onnx"
DATA_NAME = "model.onnx_data"
TASK = "text-generation-with-past"
_WORK_PREFIX = ".export."
OPSETS = range(17, 21)  # older ones lack operators; torch's exporter ends at 20


def export_checkpoint(checkpoint: Path, opset: int, output_dir: Path) -> None:
    """Export a normalised checkpoint folder to `model.onnx` and `model.onnx_data`, fp32.

    All weights lie in the data file, whatever the model's size; a tied head is stored apart from
    the embedding, as the transpose that its MatMul reads. Nothing else is written to
    `output_dir`, and nothing at all when the export fails or does not hold the checkpoint.
    """
    if opset not in OPSETS:
        raise SnapbakeError(
            f"opset {opset} cannot be exported; choose one from {OPSETS[0]} to {OPSETS[-1]}"
        )
    weights = checkpoint / "model.safetensors"
    require_file(weights)
    spec = read_spec(read_json(checkpoint / "config.json"))
    parameters = sum(int(np.prod(shape)) for shape in expected_tensors(spec).values())
    stored = parameters + spec.tied_embeddings * spec.vocab_size * spec.hidden_size
    # fp32, twice for a moment: torch writes one file a tensor before Optimum joins them.
    require_disk_space(output_dir, stored * 4 * 2)
    output_dir.mkdir(parents=True, exist_ok=True)
    for stale in output_dir.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(stale)  # a run that was killed leaves gigabytes
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=output_dir) as name:
        folder = Path(name)
        _say(f"exporting {checkpoint} ({parameters:,} parameters) to ONNX opset {opset}")
        _run_optimum(checkpoint, opset, folder)
        _say("comparing every weight of the export with the checkpoint")
        check_export(folder / MODEL_NAME, checkpoint, opset)
        umask = os.umask(0)
        os.umask(umask)
        # The old graph goes first: it must never be seen beside the new data.
        (output_dir / MODEL_NAME).unlink(missing_ok=True)
        for file in (DATA_NAME, MODEL_NAME):
            (folder / file).chmod(0o666 & ~umask)  # Optimum makes the data file private
            (folder / file).replace(output_dir / file)
    size = (output_dir / DATA_NAME).stat().st_size
    _say(f"wrote {output_dir / MODEL_NAME} and {DATA_NAME} ({size / 1e6:.0f} MB)")


def check_export(model_path: Path, checkpoint: Path, opset: int) -> None:
    """Raise unless an export has the expected borders and opset and the checkpoint's weights."""
    if not model_path.exists():
        raise SnapbakeError(
            f"Optimum ended without an error and wrote no {model_path.name} for {checkpoint}; "
            "look for the reason in the lines above"
        )
    spec = read_spec(read_json(checkpoint / "config.json"))
    model = load_graph(model_path)
    found = {entry.domain: entry.version for entry in model.opset_import}
    if found.get("") != opset:
        raise SnapbakeError(
            f"{model_path} has opset {found.get('')} where {opset} was asked for; choose an opset "
            "that the installed torch can export"
        )
    expected = expected_borders(spec.layers, spec.kv_heads, spec.head_dim, spec.vocab_size)
    require_borders(model, model_path, expected)
    require_external_data(model, model_path)
    _require_one_data_file(model, model_path)
    compare_weights(model, model_path.parent, checkpoint, spec)


def compare_weights(
    model: onnx.ModelProto, folder: Path, checkpoint: Path, spec: DecoderSpec
) -> None:
    """Raise unless graph and checkpoint hold the same weights, bit for bit in fp32.

    A Linear weight [out, in] may stand transposed [in, out], and tensors of equal values may be
    one; every tensor of the checkpoint must be in the graph and every large tensor of the graph
    in the checkpoint.
    """
    index: dict[tuple[int, int, int], list[_Candidate]] = {}
    weights = ExternalWeights(model, folder)
    for name in weights.names():
        candidate = _Candidate(name, weights[name])
        index.setdefault(_fingerprint(candidate.value), []).append(candidate)
    used: set[str] = set()
    checked = 0
    for key, value in _checkpoint_tensors(checkpoint, spec):
        matches = [
            candidate.name
            for candidate in index.get(_fingerprint(value), [])
            if _same_bits(candidate.value, value)
        ]
        if not matches:
            raise SnapbakeError(
                f"Optimum's export does not hold the tensor {key} {list(value.shape)} of "
                f"{checkpoint}; build the checkpoint again, and if this stays, report the model"
            )
        used.update(matches)
        checked += 1
    strange = sorted(
        candidate.name
        for candidates in index.values()
        for candidate in candidates
        if candidate.name not in used
    )
    if strange:
        raise SnapbakeError(
            f"Optimum's export holds {', '.join(strange[:3])}"
            f"{' and more' if len(strange) > 3 else ''}, found in no tensor of {checkpoint}; "
            "weights were made up or changed on the way, so check the checkpoint's tensor names"
        )
    _say(f"all {checked} tensors of the checkpoint are in the export, bit for bit")


@dataclass(frozen=True)
class _Candidate:
    name: str
    value: NDArray[Any]


def _checkpoint_tensors(
    checkpoint: Path, spec: DecoderSpec
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every tensor of the checkpoint in fp32, one at a time."""
    import torch

    path = checkpoint / "model.safetensors"
    with safe_open(path, framework="pt") as tensors:
        keys = set(tensors.keys())
        missing = sorted(expected_tensors(spec).keys() - keys)
        if missing:
            raise SnapbakeError(
                f"{path} lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}; "
                "export the checkpoint again"
            )
        for key in sorted(keys):
            yield key, tensors.get_tensor(key).to(torch.float32).numpy()


def _fingerprint(value: NDArray[Any]) -> tuple[int, int, int]:
    """Return size, sum and parity of the bit patterns: the same for a matrix and its transpose."""
    bits = np.ascontiguousarray(value).view(np.uint32).reshape(-1)
    return bits.size, int(bits.sum(dtype=np.uint64)), int(np.bitwise_xor.reduce(bits))


def _same_bits(stored: NDArray[Any], value: NDArray[np.float32]) -> bool:
    bits, wanted = stored.view(np.uint32), value.view(np.uint32)
    if stored.shape == value.shape and np.array_equal(bits, wanted):
        return True
    return value.ndim == 2 and bits.shape == wanted.T.shape and np.array_equal(bits, wanted.T)


def _require_one_data_file(model: onnx.ModelProto, path: Path) -> None:
    files = {place.location for _, place in external_tensors(model)}
    if files != {DATA_NAME}:
        raise SnapbakeError(
            f"{path} keeps its weights in {', '.join(sorted(files)) or 'the graph itself'} where "
            f"{DATA_NAME} was expected; use the pinned version of optimum-onnx"
        )


def _run_optimum(checkpoint: Path, opset: int, folder: Path) -> None:
    # Imported here: this takes seconds and nothing else in the module needs it.
    import optimum.utils.logging
    import transformers.utils.logging
    from optimum.exporters.onnx.__main__ import main_export

    # Their warnings are about tracing in general, tokenizer defaults and deprecated names; what
    # could be wrong with the result is checked on the result.
    optimum.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings(), _environment("FORCE_ONNX_EXTERNAL_DATA", "1"):
        warnings.simplefilter("ignore")
        try:
            main_export(
                str(checkpoint),
                output=folder,
                task=TASK,
                opset=opset,
                device="cpu",
                dtype="fp32",
                framework="pt",
                library_name="transformers",
                local_files_only=True,
                do_validation=False,  # snapbake.onnx_check proves much more
                # Post-processing would store a tied head once, but it fails above 2 GB, the limit
                # of a protobuf message, and loads all weights twice below.
                no_post_process=True,
            )
        except Exception as error:
            cause = _cause(error)
            first = (str(cause).strip() or "no message").splitlines()[0]
            raise SnapbakeError(
                f"Optimum could not export {checkpoint} with opset {opset}: "
                f"{type(cause).__name__}: {first}; check the checkpoint's config.json and the opset"
            ) from error


def _cause(error: BaseException) -> BaseException:
    """Return the first error of a chain; Optimum wraps it in a general one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for as long as the block runs: Optimum has no argument for it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
