"""Raw tensor files, as qnn-net-run reads and writes them: elements only, little-endian, C order.

A file is "native" when it holds the tensor's own elements (codes of a quantised tensor), "float"
when it holds float32 whatever the tensor holds. Integers and booleans that are no codes are
native in both cases: a token id has no other form.
"""

import re
from pathlib import Path
from typing import Final

import numpy as np

from snapbake.errors import SnapbakeError
from snapbake.files import require_file
from snapbake.qnn_system import TensorInfo
from snapbake.qnn_types import DATA_TYPES_BY_NAME

_FLOAT32: Final = np.dtype(np.float32)


def quantize(values: np.ndarray, tensor: TensorInfo) -> np.ndarray:
    """Return the codes of real values: round(value / scale) - offset, saturated.

    `values` may have any float type; the codes have the tensor's element type and `values`' shape.
    """
    scale, offset = _encoding(tensor)
    codes = native_type(tensor)
    limits = np.iinfo(codes)
    scaled = np.rint(values.astype(np.float64) / scale) - offset
    return np.clip(scaled, limits.min, limits.max).astype(codes)


def dequantize(codes: np.ndarray, tensor: TensorInfo) -> np.ndarray:
    """Return the real values of codes, (code + offset) x scale, in float32."""
    scale, offset = _encoding(tensor)
    return ((codes.astype(np.float64) + offset) * scale).astype(np.float32)


def native_type(tensor: TensorInfo) -> np.dtype:
    """Return the type of a tensor's elements in memory and in native files.

    Raises SnapbakeError for a type whose elements do not fill whole bytes or that is unknown.
    """
    known = DATA_TYPES_BY_NAME.get(tensor.dtype)
    if known is None or known.numpy is None:
        raise SnapbakeError(
            f"tensor {tensor.name} has the type {tensor.dtype}, which cannot be read from or "
            "written to a file; compile the graph with 8-bit, 16-bit or float tensors at its border"
        )
    return known.numpy


def file_type(tensor: TensorInfo, *, native: bool) -> np.dtype:
    """Return the type of the elements in a tensor's file."""
    own = native_type(tensor)
    if native or not (own.kind == "f" or _is_quantized(tensor)):
        return own
    return _FLOAT32


def file_size(tensor: TensorInfo, *, native: bool) -> int:
    """Return the bytes of a tensor's file."""
    elements = int(np.prod(tensor.shape, dtype=np.int64))
    return elements * file_type(tensor, native=native).itemsize


def clean_name(name: str) -> str:
    """Return a tensor's or graph's name as QNN's tools write it in file names.

    Every run of characters other than letters, digits and `_` becomes one `_`, and a name that
    does not begin with a letter or `_` gets one in front.
    """
    cleaned = re.sub(r"\W+", "_", name)
    return cleaned if re.match(r"[^\W\d]", cleaned) else f"_{cleaned}"


def file_name(tensor: TensorInfo) -> str:
    """Return the name of a tensor's file in a result folder."""
    return f"{clean_name(tensor.name)}.raw"


def read_tensor(path: Path, tensor: TensorInfo, *, native: bool) -> np.ndarray:
    """Read a file that `check_file` accepted; returns the tensor's own elements in its shape."""
    values = np.fromfile(path, file_type(tensor, native=native)).reshape(tensor.shape)
    own = native_type(tensor)
    if values.dtype == own:
        return values
    return values.astype(own) if own.kind == "f" else quantize(values, tensor)


def write_tensor(path: Path, values: np.ndarray, tensor: TensorInfo, *, native: bool) -> None:
    """Write a tensor's own elements, in its native form or as float32."""
    written = file_type(tensor, native=native)
    if written != values.dtype:
        is_float = values.dtype.kind == "f"
        values = values.astype(written) if is_float else dequantize(values, tensor)
    # Not tofile, whose error on a full disk does not say so.
    path.write_bytes(values.tobytes())


def check_file(path: Path, tensor: TensorInfo, *, native: bool) -> None:
    """Raise SnapbakeError unless a file can be fed to a tensor.

    What is refused: a missing file, another byte size, floats that are not finite or that float16
    cannot hold, and elements that can only be meant as another type.
    """
    require_file(path)
    _check_size(path, tensor, native=native)
    expected = file_type(tensor, native=native)
    if expected.kind == "f":
        if _is_quantized(tensor):
            _encoding(tensor)
        _check_floats(path, np.fromfile(path, expected), tensor)
    elif expected == np.int32:
        _check_int32(path, np.fromfile(path, expected), tensor)


def check_writable(tensor: TensorInfo, *, native: bool) -> None:
    """Raise SnapbakeError when a tensor's elements cannot be written in the form asked for."""
    if file_type(tensor, native=native).kind == "f" and _is_quantized(tensor):
        _encoding(tensor)


def _check_size(path: Path, tensor: TensorInfo, *, native: bool) -> None:
    found = path.stat().st_size
    expected = file_size(tensor, native=native)
    if found == expected:
        return
    element = file_type(tensor, native=native)
    hint = "write the file again"
    if found == file_size(tensor, native=not native):
        hint = (
            "the size is that of a float32 file: leave out --use_native_input_files"
            if native
            else "the size is that of a native file: add --use_native_input_files"
        )
    elif element.kind in "iu" and found * element.itemsize == expected * 8:
        hint = f"the size is that of int64: write {element.name}"
    elif found and found % expected == 0:
        hint = "the size is that of several inferences: write one file for each"
    raise SnapbakeError(
        f"{path} has {found} bytes and tensor {describe(tensor)} takes {expected} bytes of "
        f"{element.name}; {hint}"
    )


def _check_floats(path: Path, values: np.ndarray, tensor: TensorInfo) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise SnapbakeError(
            f"{path} for tensor {describe(tensor)} has {values[bad[0]]} at element {bad[0]}; "
            "write finite numbers (a mask needs a finite value in place of -inf)"
        )
    if values.dtype == np.float32:
        meant = values[values != 0]
        if meant.size and np.all(np.abs(meant) < np.finfo(np.float32).tiny):
            raise SnapbakeError(
                f"{path} for tensor {describe(tensor)} holds integers where float32 is read "
                f"(its first is {meant[:1].view(np.int32)[0]}); write float32"
            )
    if tensor.dtype == "float16":
        limit = np.finfo(np.float16).max
        bad = np.flatnonzero(np.abs(values) > limit)
        if bad.size:
            raise SnapbakeError(
                f"{path} for tensor {describe(tensor)} has {values[bad[0]]} at element {bad[0]}, "
                f"beyond float16's range of ±{limit:.0f}; write a smaller value"
            )


def _check_int32(path: Path, values: np.ndarray, tensor: TensorInfo) -> None:
    meant = values[values != 0].view(np.float32)
    # As integers these would all lie above a thousand million.
    if meant.size and np.all((meant >= 1) & (meant < 2**24) & (meant == np.floor(meant))):
        raise SnapbakeError(
            f"{path} for tensor {describe(tensor)} holds float32 (its first is {meant[0]}) where "
            "int32 is read; integer tensors are always read in their own type, write int32"
        )


def describe(tensor: TensorInfo) -> str:
    """Return a tensor's name, type and shape for a message."""
    return f"{tensor.name} ({tensor.dtype}, shape {list(tensor.shape)})"


def _is_quantized(tensor: TensorInfo) -> bool:
    return DATA_TYPES_BY_NAME[tensor.dtype].quantized


def _encoding(tensor: TensorInfo) -> tuple[float, int]:
    if tensor.scale is None or tensor.offset is None:
        raise SnapbakeError(
            f"tensor {describe(tensor)} has no single scale and offset, so its codes cannot be "
            "turned into real values; use native files"
        )
    return tensor.scale, tensor.offset
