"""PyTorch's own weight files (pytorch_model.bin), read as data and never run as a program.

Such a file is an uncompressed zip archive: data.pkl, a pickle that says which tensors there are,
and one record of raw bytes for each storage. A pickle can call any function while it is read, so it
is read with `weights_only=True` alone, and before that its bytes are searched for what it calls.
"""

import pickletools
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapbake.errors import SnapbakeError
from snapbake.safetensors_file import TensorInfo, refuse_placeholder

if TYPE_CHECKING:
    import torch

# Everything that the pickle of a state dictionary refers to.
_STORAGES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {name}Storage" for name in _STORAGES),
}
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of name and extra field, in a zip's local header
_SAFER = "export it with `export_legacy_format: false`, which writes safetensors"


def read_torch_file(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a PyTorch file by name; no tensor is read.

    Raises SnapbakeError for a file that is not whole, one that carries code, one in the form of
    before PyTorch 1.6, and one that does not hold a plain dictionary of contiguous tensors.
    """
    with path.open("rb") as stream:
        first = stream.read(8)
    refuse_placeholder(path, first)
    if not zipfile.is_zipfile(path):
        if first.startswith(b"PK"):
            raise SnapbakeError(f"{path} ends too early; it is truncated, copy it again")
        if first.startswith(b"\x80"):
            raise SnapbakeError(
                f"{path} has the form of before PyTorch 1.6, which cannot be judged without "
                "reading it whole; load it and save the model as safetensors"
            )
        raise SnapbakeError(f"{path} is not a file of PyTorch; copy or download it again")
    try:
        with zipfile.ZipFile(path) as archive:
            records = _records(archive, path)
            _refuse_code(_pickle(archive, path), path)
        state = _load(path)
    except (zipfile.BadZipFile, OSError, struct.error) as error:
        raise SnapbakeError(f"{path} is damaged ({error}); copy it again") from error
    return {name: _tensor_info(name, value, path, records) for name, value in state.items()}


def require_sound_archives(tensors: Iterable[TensorInfo]) -> None:
    """Raise unless the checksums in the PyTorch files that hold these tensors fit their bytes.

    Safetensors files have no checksums. Reads the files whole, in blocks.
    """
    for path in sorted({tensor.file for tensor in tensors if tensor.file.suffix == ".bin"}):
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except (zipfile.BadZipFile, OSError) as error:
            raise SnapbakeError(f"{path} is damaged ({error}); copy it again") from error
        if damaged is not None:
            raise SnapbakeError(
                f"{path}: the bytes of {damaged} do not fit their checksum; the file is damaged, "
                "copy it again"
            )


def _records(archive: zipfile.ZipFile, path: Path) -> dict[int, int]:
    """Return the size of each record by the position of its first byte in the file."""
    records = {}
    with path.open("rb") as stream:
        for item in archive.infolist():
            if item.compress_type != zipfile.ZIP_STORED:
                raise SnapbakeError(
                    f"{path}: {item.filename} is compressed, which PyTorch does not do; {_SAFER}"
                )
            if item.filename.endswith("/byteorder") and archive.read(item) != b"little":
                raise SnapbakeError(f"{path} was written on a big-endian machine; {_SAFER}")
            stream.seek(item.header_offset)
            lengths = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
            records[item.header_offset + _LOCAL_HEADER.size + sum(lengths)] = item.file_size
    return records


def _pickle(archive: zipfile.ZipFile, path: Path) -> bytes:
    pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
    if len(pickles) != 1:
        raise SnapbakeError(
            f"{path} is a zip archive without PyTorch's data.pkl; copy or download it again"
        )
    return archive.read(pickles[0])


def _refuse_code(content: bytes, path: Path) -> None:
    try:
        operations = [(code.name, argument) for code, argument, _ in pickletools.genops(content)]
    except Exception as error:  # whatever pickletools makes of damaged bytes
        raise SnapbakeError(f"{path}: data.pkl is damaged ({error}); copy it again") from error
    for name, argument in operations:
        called = argument if name == "GLOBAL" else name
        if name in ("GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4") and (
            called not in _HARMLESS
        ):
            raise SnapbakeError(
                f"{path} carries code: its pickle calls {str(called).replace(' ', '.')}, which "
                "weights do not need; do not load it, take the model from its author as safetensors"
            )


def _load(path: Path) -> dict[str, "torch.Tensor"]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        # Fake tensors have a shape and the place of their bytes in the file, and no bytes.
        with FakeTensorMode():
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged files
        raise SnapbakeError(
            f"{path} cannot be read as weights ({str(error).splitlines()[0][:200]}); {_SAFER}"
        ) from error
    if not isinstance(state, dict) or not state:
        raise SnapbakeError(f"{path} holds no dictionary of tensors; {_SAFER}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise SnapbakeError(
                f"{path} holds {type(value).__name__} under {name!r} where a tensor is needed; "
                "take the file of the model alone, without the state of its training"
            )
    return state


def _tensor_info(name: str, tensor: Any, path: Path, records: dict[int, int]) -> TensorInfo:
    import torch

    types = {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
    if tensor.dtype not in types or not tensor.is_contiguous():
        state = "a transposed view" if tensor.dtype in types else f"of type {tensor.dtype}"
        raise SnapbakeError(f"{path}: tensor {name} is {state}, which is not read here; {_SAFER}")
    record = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    begin = tensor.storage_offset() * tensor.element_size()
    size = tensor.numel() * tensor.element_size()
    if record not in records or begin + size > records[record]:
        raise SnapbakeError(
            f"{path}: tensor {name} reaches beyond the bytes that the file has for it; the file is "
            "damaged, copy it again"
        )
    start = record + begin
    return TensorInfo(name, types[tensor.dtype], tuple(tensor.shape), path, start, start + size)
