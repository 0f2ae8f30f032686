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

# Qnn_Definition_t
DEFINED: Final = 1
UNDEFINED: Final = 0x7FFFFFFF
# Qnn_QuantizationEncoding_t: those with one scale and offset, and where the union has them.
ENCODINGS_BY_VALUE: Final = {0: "scale_offset", 2: "bitwidth_scale_offset"}
# Qnn_TensorMemType_t
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


# Qnn_ErrorHandle_t: 0 is success.
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


class Interface(Structure):
    """QnnInterface_t, its function table up to graphExecute."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("provider_name", c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("property_has_capability", c_void_p),
        (
            "backend_create",
            CFUNCTYPE(ErrorCode, c_void_p, c_void_p, POINTER(c_void_p)),
        ),
        ("backend_set_config", c_void_p),
        ("backend_get_api_version", c_void_p),
        ("backend_get_build_id", c_void_p),
        ("backend_register_op_package", c_void_p),
        ("backend_get_supported_operations", c_void_p),
        ("backend_validate_op_config", c_void_p),
        ("backend_free", c_void_p),
        ("context_create", c_void_p),
        ("context_set_config", c_void_p),
        ("context_get_binary_size", c_void_p),
        ("context_get_binary", c_void_p),
        (
            # backend, device, configuration, bytes, size, context, profile
            "context_create_from_binary",
            CFUNCTYPE(
                ErrorCode,
                c_void_p,
                c_void_p,
                c_void_p,
                c_void_p,
                c_uint64,
                POINTER(c_void_p),
                c_void_p,
            ),
        ),
        ("context_free", c_void_p),
        ("graph_create", c_void_p),
        ("graph_create_subgraph", c_void_p),
        ("graph_set_config", c_void_p),
        ("graph_add_node", c_void_p),
        ("graph_finalize", c_void_p),
        ("graph_retrieve", CFUNCTYPE(ErrorCode, c_void_p, c_char_p, POINTER(c_void_p))),
        (
            # graph, inputs, their count, outputs, their count, profile, signal
            "graph_execute",
            CFUNCTYPE(
                ErrorCode,
                c_void_p,
                POINTER(Tensor),
                c_uint32,
                POINTER(Tensor),
                c_uint32,
                c_void_p,
                c_void_p,
            ),
        ),
    )


# What the codes mean by QNN's headers; 1100 was met here and is the HTP backend's own.
_ERROR_NAMES: Final = {
    1000: "not supported",
    1002: "memory allocation",
    1003: "system error",
    1004: "invalid argument",
    1005: "operation not permitted",
    1006: "platform not supported",
    1007: "platform communication",
    1008: "incompatible binaries",
    1009: "loading binaries",
    1010: "resource unavailable",
    1011: "fatal platform communication",
    1100: "execution aborted",
    3110: "operator validation",
    4000: "backend cannot initialise",
    5000: "invalid context argument",
    5003: "context not finalised",
    5004: "binary version",
    5005: "creating a context from the binary",
    5008: "binary configuration",
    5010: "invalid context configuration",
    5011: "suboptimal binary",
    6004: "invalid tensor",
    6005: "invalid operator configuration",
    6020: "graph creation",
    6022: "graph finalisation",
    7003: "tensor exists already",
    7006: "tensor name hash collision",
    8003: "memory mapping",
    14001: "invalid device configuration",
    14002: "hardware unavailable",
    30001: "invalid argument",
    30010: "malformed binary",
}


class QnnError(Exception):
    """A call of QNN that returned an error code; `code` is its number."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        self.code = code

    def __str__(self) -> str:
        call, code = self.args
        name = _ERROR_NAMES.get(code)
        return f"{call} returned QNN error {code}" + (f" ({name})" if name else "")
