"""Safetensors files: headers read without loading tensors, and a writer that streams.

The format (github.com/huggingface/safetensors, README "Format"): 8 bytes little-endian header
length N, N bytes of JSON, then the tensors' bytes without holes. `data_offsets` count from the end
of the header.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from snapbake.errors import SnapbakeError

# Bytes an element. Other names are newer than this table or not safetensors at all.
ITEM_SIZES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}

# Unsigned type of the same width, mask of everything but the sign, smallest code that is not a
# finite number. A float is NaN or infinite when its exponent is all ones.
_NOT_FINITE: Mapping[str, tuple[str, int, int]] = {
    "F32": ("<u4", 0x7FFFFFFF, 0x7F800000),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "BF16": ("<u2", 0x7FFF, 0x7F80),
}
FLOAT_TYPES = tuple(_NOT_FINITE)

_IDENTITY = "weights_sha256"
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library
_BLOCK = 1 << 23


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `start` and `end` are byte positions in `file`.

    The file is of safetensors or, see `snapbake.torch_file`, an archive of PyTorch.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file by name; no tensor is read.

    Raises SnapbakeError for everything that makes the file not whole: an empty file, a Git LFS
    pointer, a broken header, unknown types, sizes that do not fit, holes, overlaps, a truncated or
    overlong file.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(8)
        refuse_placeholder(path, first)
        length = int.from_bytes(first, "little")
        if size < 8 or not 2 <= length <= _LONGEST_HEADER:
            raise SnapbakeError(f"{path} is not a safetensors file; copy or download it again")
        if 8 + length > size:
            raise SnapbakeError(
                f"{path} ends within its header ({size} bytes); it is truncated, copy it again"
            )
        header = _parse_header(stream.read(length), path)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            tensors[name] = _tensor_info(name, entry, path, 8 + length)
    position = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != position:
            raise SnapbakeError(
                f"{path}: tensor {tensor.name} starts at byte {tensor.start} instead of "
                f"{position}; the header is damaged, copy the file again"
            )
        position = tensor.end
    if position != size:
        state = "truncated" if size < position else "longer than its header says"
        raise SnapbakeError(
            f"{path} has {size} bytes where its header asks for {position}; it is {state}, copy "
            "or download it again"
        )
    return tensors


def refuse_placeholder(path: Path, first: bytes) -> None:
    """Raise when `first`, the beginning of a weight file, says that the weights are elsewhere."""
    if not first:
        raise SnapbakeError(f"{path} is empty; copy or download it again")
    if first.startswith(b"version "):
        raise SnapbakeError(
            f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its "
            "repository or download the file itself"
        )


def stored_identity(path: Path) -> str | None:
    """Return the identity that `write_tensors` noted in a file.

    None when there is no file, or one of another tool.
    """
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = _parse_header(stream.read(min(length, _LONGEST_HEADER)), path)
    metadata = header.get("__metadata__")
    identity = metadata.get(_IDENTITY) if isinstance(metadata, dict) else None
    return identity if isinstance(identity, str) else None


def read_blocks(tensor: TensorInfo) -> Iterator[bytes]:
    """Yield the bytes of a tensor in blocks of 8 MiB at most, whole elements in each."""
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            block = stream.read(min(left, _BLOCK))
            if not block:
                raise SnapbakeError(f"{tensor.file} became shorter while it was read; try again")
            left -= len(block)
            yield block


def equal_bytes(first: TensorInfo, second: TensorInfo) -> bool:
    """Return whether two tensors have the same type, shape and bytes."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    pairs = zip(read_blocks(first), read_blocks(second), strict=True)
    return all(one == other for one, other in pairs)


def scan_tensors(tensors: Iterable[TensorInfo], stream: BinaryIO | None = None) -> str:
    """Look at every value of float tensors and return the identity of the weights.

    The identity is SHA-256 over the tensors in order of their names, each given by its name, type,
    shape and the SHA-256 of its bytes, so it is the same however the tensors are laid out in
    files. NaN or infinity raises SnapbakeError with the tensor's name and place. The bytes go to
    `stream` in the order of `tensors`; memory does not grow with the model.
    """
    digests = {tensor: _scan_tensor(tensor, stream) for tensor in tensors}
    identity = [
        [tensor.name, tensor.dtype, list(tensor.shape), digests[tensor]]
        for tensor in sorted(digests, key=lambda tensor: tensor.name)
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def write_tensors(tensors: Iterable[TensorInfo], output: Path) -> str:
    """Copy float tensors into one new safetensors file, and return what `scan_tensors` does.

    The identity is also noted in the file (see `stored_identity`). Equal tensors give an equal
    file.
    """
    # Wide types first keeps every tensor aligned to its element size.
    ordered = sorted(tensors, key=lambda tensor: (-ITEM_SIZES[tensor.dtype], tensor.name))
    with output.open("wb") as stream:
        stream.write(_header_bytes(ordered, "0" * hashlib.sha256().digest_size * 2))
        identity = scan_tensors(ordered, stream)
        stream.seek(0)
        stream.write(_header_bytes(ordered, identity))
    return identity


def _parse_header(content: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise ValueError("a name comes twice")
        return entries

    try:
        header = json.loads(content.decode("utf-8"), object_pairs_hook=unique)
    except ValueError as error:
        raise SnapbakeError(
            f"{path}: the safetensors header cannot be read ({error}); copy or download the file "
            "again"
        ) from error
    if not isinstance(header, dict):
        raise SnapbakeError(f"{path}: the safetensors header is not an object; copy it again")
    return header


def _tensor_info(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
        sound = isinstance(dtype, str)
        sound &= all(type(number) is int and number >= 0 for number in numbers)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise SnapbakeError(
            f"{path}: the header entry of tensor {name} is damaged; copy the file again"
        )
    if dtype not in ITEM_SIZES:
        raise SnapbakeError(
            f"{path}: tensor {name} has type {dtype!r}, which is not known here; save the model "
            "as float32, float16 or bfloat16"
        )
    if end - begin != math.prod(shape) * ITEM_SIZES[dtype]:
        raise SnapbakeError(
            f"{path}: tensor {name} has {end - begin} bytes, which does not fit {dtype} "
            f"{list(shape)}; the header is damaged, copy the file again"
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, data_start + end)


def _header_bytes(tensors: Iterable[TensorInfo], identity: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", _IDENTITY: identity}}
    position = 0
    for tensor in tensors:
        end = position + tensor.end - tensor.start
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


def _scan_tensor(tensor: TensorInfo, stream: BinaryIO | None) -> str:
    unsigned, magnitude, not_finite = _NOT_FINITE[tensor.dtype]
    digest = hashlib.sha256()
    position = 0
    for block in read_blocks(tensor):
        codes = np.frombuffer(block, dtype=unsigned) & magnitude
        if codes.size and codes.max() >= not_finite:
            first = position + int(np.argmax(codes >= not_finite))
            place = [int(index) for index in np.unravel_index(first, tensor.shape)]
            raise SnapbakeError(
                f"{tensor.file}: tensor {tensor.name} has NaN or infinity at {place}; the "
                "training diverged or the file is damaged, take an earlier checkpoint"
            )
        position += codes.size
        digest.update(block)
        if stream is not None:
            stream.write(block)
    return digest.hexdigest()
