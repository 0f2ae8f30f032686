// The part of QNN's C interface that qnn_runner calls, declared by ourselves.
//
// Layouts, codes and the order of the function tables are those of QNN core API 2.40 and system API
// 1.15 (QAIRT 2.51), measured on the libraries. Function tables and descriptions are only read, so
// the tails that nothing here needs are left out. qnn_context.cpp compares the versions that the
// loaded libraries report with these; the sizes are checked below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace snapbake::qnn {

using Handle = void*;
using Status = std::uint64_t;  // 0 is success

struct Version {
  std::uint32_t major, minor, patch;
};

constexpr Version kCoreApi{2, 40, 0};
constexpr Version kSystemApi{1, 15, 0};

enum DataType : std::uint32_t {
  kInt32 = 0x032,
  kFloat16 = 0x216,
  kFloat32 = 0x232,
  kUfix8 = 0x408,
  kUfix16 = 0x416,
};

constexpr std::uint32_t kDefined = 1;
constexpr std::uint32_t kUndefined = 0x7FFFFFFF;
constexpr std::uint32_t kScaleOffset = 0;  // of Encoding, real = (code + offset) x scale
constexpr std::uint32_t kMemoryRaw = 0;

struct ScaleOffset {
  float scale;
  std::int32_t offset;
};

struct BitwidthAxisScaleOffset {
  std::uint32_t bitwidth;
  std::int32_t axis;
  std::uint32_t count;
  float* scales;
  std::int32_t* offsets;
};

struct QuantizeParams {
  std::uint32_t definition;
  std::uint32_t encoding;
  union {
    ScaleOffset scale_offset;
    BitwidthAxisScaleOffset largest;  // gives the union its size
  };
};

struct ClientBuffer {
  void* data;
  std::uint32_t size;
};

// Qnn_TensorV2_t, which begins with all of Qnn_TensorV1_t, behind its version.
struct Tensor {
  std::uint32_t version;
  std::uint32_t padding;
  std::uint32_t id;
  const char* name;
  std::uint32_t type;
  std::uint32_t data_format;
  std::uint32_t data_type;
  QuantizeParams quantize_params;
  std::uint32_t rank;
  std::uint32_t* dimensions;
  std::uint32_t memory_type;
  union {
    ClientBuffer client_buffer;
    Handle memory_handle;
  };
  std::uint8_t* is_dynamic_dimensions;
  std::uint32_t sparse_layout[3];
  std::uint8_t is_produced;
};

// QnnSystemContext_GraphInfo_t with the start of all its versions.
struct GraphInfo {
  std::uint32_t version;
  std::uint32_t padding;
  const char* name;
  std::uint32_t input_count;
  const Tensor* inputs;
  std::uint32_t output_count;
  const Tensor* outputs;
  std::uint32_t rest[10];  // as large as version 3
};

struct BinaryInfoV1 {
  Version hardware_blob_version;
  Version blob_version;
  std::uint32_t hardware_blob_size;
  const void* hardware_blob;
  std::uint64_t blob_size;
  std::uint32_t context_tensor_count;
  const Tensor* context_tensors;
  std::uint32_t graph_count;
  const GraphInfo* graphs;
};

struct BinaryInfoV3 {
  Version blob_version;
  std::uint64_t blob_size;
  std::uint32_t context_tensor_count;
  const Tensor* context_tensors;
  std::uint32_t graph_count;
  const GraphInfo* graphs;
  const void* platform_info;
  std::uint32_t metadata_size;
  const void* metadata;
  std::uint32_t soc_model;
};

// QnnSystemContext_BinaryInfo_t: what all versions begin with, then what sets them apart.
struct BinaryInfo {
  std::uint32_t version;
  std::uint32_t padding;
  std::uint32_t backend_id;
  const char* build_id;
  Version core_api;
  Version backend_api;
  const char* soc_version;
  union {
    BinaryInfoV1 v1;  // and version 2
    BinaryInfoV3 v3;
  };
};

static_assert(sizeof(void*) == 8, "the layouts are those of 64-bit systems");
static_assert(sizeof(QuantizeParams) == 40);
static_assert(sizeof(Tensor) == 144);
static_assert(offsetof(Tensor, name) == 16);
static_assert(offsetof(Tensor, quantize_params) == 40);
static_assert(offsetof(Tensor, dimensions) == 88);
static_assert(offsetof(Tensor, client_buffer) == 104);
static_assert(offsetof(Tensor, is_produced) == 140);
static_assert(sizeof(GraphInfo) == 88);
static_assert(offsetof(GraphInfo, outputs) == 40);
static_assert(sizeof(BinaryInfo) == 144);
static_assert(offsetof(BinaryInfo, v1) == 56);
static_assert(offsetof(BinaryInfo, v1.graphs) == 128);
static_assert(offsetof(BinaryInfo, v3.graphs) == 104);
static_assert(offsetof(BinaryInfo, v3.soc_model) == 136);

// QnnSystemInterface_t, the start of its function table.
struct SystemInterface {
  std::uint32_t backend_id;
  const char* provider;
  Version api;
  Status (*context_create)(Handle* context);
  void* context_get_binary_info;
  Status (*context_get_metadata)(Handle context, const void* bytes, std::uint64_t size,
                                 const BinaryInfo** info);
  Status (*context_free)(Handle context);
};

// QnnInterface_t, its function table up to graphExecute.
struct Interface {
  std::uint32_t backend_id;
  const char* provider;
  Version core_api;
  Version backend_api;
  void* property_has_capability;
  Status (*backend_create)(Handle log, const void** config, Handle* backend);
  void* backend_set_config;
  void* backend_get_api_version;
  void* backend_get_build_id;
  void* backend_register_op_package;
  void* backend_get_supported_operations;
  void* backend_validate_op_config;
  Status (*backend_free)(Handle backend);
  void* context_create;
  void* context_set_config;
  void* context_get_binary_size;
  void* context_get_binary;
  Status (*context_create_from_binary)(Handle backend, Handle device, const void** config,
                                       const void* bytes, std::uint64_t size, Handle* context,
                                       Handle profile);
  Status (*context_free)(Handle context, Handle profile);
  void* graph_create;
  void* graph_create_subgraph;
  void* graph_set_config;
  void* graph_add_node;
  void* graph_finalize;
  Status (*graph_retrieve)(Handle context, const char* name, Handle* graph);
  Status (*graph_execute)(Handle graph, const Tensor* inputs, std::uint32_t input_count,
                          Tensor* outputs, std::uint32_t output_count, Handle profile,
                          Handle signal);
};

using GetSystemProviders = Status(const SystemInterface*** providers, std::uint32_t* count);
using GetProviders = Status(const Interface*** providers, std::uint32_t* count);

}  // namespace snapbake::qnn
