"""The part of the QNN C interface that snapbake calls, declared for ctypes.

Layouts, codes and the order of the function tables follow QNN core API 2.x (QnnTypes.h,
QnnInterface.h, QnnSystemContext.h, QnnSystemInterface.h) and were compared with the libraries of
QAIRT 2.51. Every structure ends where our need for it ends: a function table is never allocated
here, only read, so its unused tail is left out.
"""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_float,
    c_int32,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from typing import Final

import numpy as np


@dataclass(frozen=True)
class DataType:
    """An element type of a QNN tensor.

    `numpy` is the type of one element in a client buffer (little-endian), None where elements
    do not fill whole bytes. `quantized` says that the elements are codes: real value =
    (code + offset) x scale.
    """

    name: str
    numpy: np.dtype | None
    quantized: bool = False


def _plain(name: str) -> DataType:
    return DataType(name, np.dtype(name))


def _fixed(name: str, codes: str | None) -> DataType:
    return DataType(name, np.dtype(codes) if codes else None, quantized=True)


# Qnn_DataType_t
DATA_TYPES: Final[dict[int, DataType]] = {
    0x008: _plain("int8"),
    0x016: _plain("int16"),
    0x032: _plain("int32"),
    0x064: _plain("int64"),
    0x108: _plain("uint8"),
    0x116: _plain("uint16"),
    0x132: _plain("uint32"),
    0x164: _plain("uint64"),
    0x216: _plain("float16"),
    0x232: _plain("float32"),
    0x264: _plain("float64"),
    0x304: _fixed("sfix4", None),
    0x308: _fixed("sfix8", "int8"),
    0x316: _fixed("sfix16", "int16"),
    0x332: _fixed("sfix32", "int32"),
    0x404: _fixed("ufix4", None),
    0x408: _fixed("ufix8", "uint8"),
    0x416: _fixed("ufix16", "uint16"),
    0x432: _fixed("ufix32", "uint32"),
    0x508: _plain("bool"),
}
DATA_TYPES_BY_NAME: Final[dict[str, DataType]] = {each.name: each for each in DATA_TYPES.values()}

# Qnn_Definition_t, Qnn_QuantizationEncoding_t, Qnn_TensorMemType_t
DEFINED: Final = 1
ENCODING_SCALE_OFFSET: Final = 0
ENCODING_BITWIDTH_SCALE_OFFSET: Final = 2
MEMORY_RAW: Final = 0


class Version(Structure):
    """Qnn_Version_t."""

    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class ScaleOffset(Structure):
    """Qnn_ScaleOffset_t: one encoding for a whole tensor."""

    _fields_ = (("scale", c_float), ("offset", c_int32))


class _BitwidthScaleOffset(Structure):
    """Qnn_BwScaleOffset_t."""

    _fields_ = (("bitwidth", c_uint32), ("scale", c_float), ("offset", c_int32))


class _BitwidthAxisScaleOffset(Structure):
    """Qnn_BwAxisScaleOffset_t: the largest member of the union, which sets its size."""

    _fields_ = (
        ("bitwidth", c_uint32),
        ("axis", c_int32),
        ("count", c_uint32),
        ("scales", POINTER(c_float)),
        ("offsets", POINTER(c_int32)),
    )


class _Encoding(Union):
    _fields_ = (
        ("scale_offset", ScaleOffset),
        ("bitwidth_scale_offset", _BitwidthScaleOffset),
        ("bitwidth_axis_scale_offset", _BitwidthAxisScaleOffset),
    )


class QuantizeParams(Structure):
    """Qnn_QuantizeParams_t."""

    _fields_ = (("definition", c_uint32), ("encoding", c_uint32), ("value", _Encoding))


class _ClientBuffer(Structure):
    """Qnn_ClientBuffer_t."""

    _fields_ = (("data", c_void_p), ("size", c_uint32))


class _Memory(Union):
    _fields_ = (("client_buffer", _ClientBuffer), ("handle", c_void_p))


class TensorFields(Structure):
    """Qnn_TensorV2_t, which begins with all of Qnn_TensorV1_t."""

    _fields_ = (
        ("id", c_uint32),
        ("name", c_char_p),
        ("type", c_uint32),
        ("data_format", c_uint32),
        ("data_type", c_uint32),
        ("quantize_params", QuantizeParams),
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("memory_type", c_uint32),
        ("memory", _Memory),
        # From here on only in version 2.
        ("is_dynamic_dimensions", POINTER(c_uint8)),
        ("sparse_layout_type", c_uint32),
        ("sparse_specified_elements", c_uint32),
        ("sparse_dimensions", c_uint32),
        ("is_produced", c_uint8),
    )


class Tensor(Structure):
    """Qnn_Tensor_t."""

    _fields_ = (("version", c_uint32), ("fields", TensorFields))


class GraphFields(Structure):
    """QnnSystemContext_GraphInfoV3_t, which begins with all of versions 1 and 2."""

    _fields_ = (
        ("name", c_char_p),
        ("input_count", c_uint32),
        ("inputs", POINTER(Tensor)),
        ("output_count", c_uint32),
        ("outputs", POINTER(Tensor)),
        ("updateable_count", c_uint32),
        ("updateable", POINTER(Tensor)),
        ("blob_size", c_uint32),
        ("blob", c_void_p),
        ("start_op_index", c_uint32),
        ("end_op_index", c_uint32),
    )


class Graph(Structure):
    """QnnSystemContext_GraphInfo_t."""

    _fields_ = (("version", c_uint32), ("fields", GraphFields))


class BinaryFieldsV1(Structure):
    """QnnSystemContext_BinaryInfoV1_t, with which version 2 begins as well."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("build_id", c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("soc_version", c_char_p),
        ("hardware_blob_version", Version),
        ("blob_version", Version),
        ("hardware_blob_size", c_uint32),
        ("hardware_blob", c_void_p),
        ("blob_size", c_uint64),
        ("context_tensor_count", c_uint32),
        ("context_tensors", POINTER(Tensor)),
        ("graph_count", c_uint32),
        ("graphs", POINTER(Graph)),
    )


class BinaryFieldsV3(Structure):
    """QnnSystemContext_BinaryInfoV3_t."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("build_id", c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("soc_version", c_char_p),
        ("blob_version", Version),
        ("blob_size", c_uint64),
        ("context_tensor_count", c_uint32),
        ("context_tensors", POINTER(Tensor)),
        ("graph_count", c_uint32),
        ("graphs", POINTER(Graph)),
        ("platform_info", c_void_p),
        ("metadata_size", c_uint32),
        ("metadata", c_void_p),
        ("soc_model", c_uint32),
    )


class _BinaryFields(Union):
    _fields_ = (("v1", BinaryFieldsV1), ("v3", BinaryFieldsV3))


class Binary(Structure):
    """QnnSystemContext_BinaryInfo_t."""

    _fields_ = (("version", c_uint32), ("fields", _BinaryFields))


# An error code of QNN: 0 is success.
ErrorCode = c_uint64


class SystemInterface(Structure):
    """QnnSystemInterface_t, the start of its function table."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("provider_name", c_char_p),
        ("api_version", Version),
        ("context_create", CFUNCTYPE(ErrorCode, POINTER(c_void_p))),
        ("context_get_binary_info", c_void_p),
        (
            "context_get_metadata",
            CFUNCTYPE(ErrorCode, c_void_p, c_void_p, c_uint64, POINTER(POINTER(Binary))),
        ),
        ("context_free", CFUNCTYPE(ErrorCode, c_void_p)),
    )
