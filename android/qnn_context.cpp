#include "qnn_context.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

namespace snapbake {
namespace {

#if defined(__x86_64__)
constexpr bool kEmulator = true;
#else
constexpr bool kEmulator = false;
#endif

const char* meaning(qnn::Status status) {
  switch (status) {
    case 1000:
      return "not supported";
    case 1002:
      return "memory allocation: the NPU has no room for it";
    case 1003:
    case 4000:
      return "the NPU's own library is missing or is not found: check ADSP_LIBRARY_PATH";
    case 1008:
      return "libraries of different SDK releases";
    case 1009:
      return "loading binaries";
    case 5000:
    case 5005:
      return "the binary is for another chip, for a newer SDK release, or damaged";
    case 14001:
      return "invalid device configuration";
    default:
      return "";
  }
}

void check(const std::string& what, qnn::Status status) {
  if (status == 0) return;
  const std::string words = meaning(status);
  throw Failure(what + " returned QNN error " + std::to_string(status) +
                (words.empty() ? "" : " (" + words + ")"));
}

std::string text(const qnn::Version& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.patch);
}

// Within a major version QNN's tables and structures grow at their ends only. An older minor
// version lacks what the binaries need, a newer one was not measured.
void require_version(const SharedLibrary& library, const char* which, const qnn::Version& found,
                     const qnn::Version& known) {
  if (found.major != known.major || found.minor < known.minor) {
    throw Failure(library.path() + " has QNN " + which + " API " + text(found) + " and " +
                  std::to_string(known.major) + "." + std::to_string(known.minor) +
                  " or a later one of the same major version is needed; take the libraries of the "
                  "SDK release that compiled the binary or of a later one");
  }
  if (found.minor > known.minor) {
    std::cerr << "note: " << library.path() << " has QNN " << which << " API " << text(found)
              << ", newer than the " << text(known) << " that this program was tested with\n";
  }
}

template <typename Table, typename Get>
const Table* first_provider(const SharedLibrary& library, const char* get_providers) {
  const Table** providers = nullptr;
  std::uint32_t count = 0;
  check(get_providers, library.get<Get>(get_providers)(&providers, &count));
  if (count == 0 || providers == nullptr) {
    throw Failure(library.path() + " offers no interface; copy it again");
  }
  return providers[0];
}

// A file mapped into memory: these have hundreds of megabytes.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw Failure(path + " cannot be opened: " + std::strerror(errno));
    struct stat status {};
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
      size_ = static_cast<std::size_t>(status.st_size);
      bytes_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    close(descriptor);
    if (bytes_ == MAP_FAILED) throw Failure(path + " is empty or no file; copy it again");
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(bytes_, size_); }

  const void* bytes() const { return bytes_; }
  std::size_t size() const { return size_; }

 private:
  void* bytes_ = MAP_FAILED;
  std::size_t size_ = 0;
};

// What a binary says about itself; valid as long as this object and the mapping are.
class Description {
 public:
  Description(const QnnSystem& system, const Mapping& file, const std::string& path)
      : system_(system) {
    check("QnnSystemContext_create", system.api().context_create(&handle_));
    const qnn::Status status =
        system.api().context_get_metadata(handle_, file.bytes(), file.size(), &info_);
    if (status != 0) {
      system_.api().context_free(handle_);
      throw Failure(path + " is not a whole QNN context binary (QNN error " +
                    std::to_string(status) + "); copy it again");
    }
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() { system_.api().context_free(handle_); }

  const qnn::BinaryInfo& info() const { return *info_; }

 private:
  const QnnSystem& system_;
  qnn::Handle handle_ = nullptr;
  const qnn::BinaryInfo* info_ = nullptr;
};

StoredForm stored_form(const qnn::Tensor& tensor) {
  const std::string name = tensor.name;
  const qnn::QuantizeParams& encoding = tensor.quantize_params;
  switch (tensor.data_type) {
    case qnn::kInt32:
    case qnn::kFloat16:
    case qnn::kFloat32:
      return {static_cast<qnn::DataType>(tensor.data_type)};
    case qnn::kUfix8:
    case qnn::kUfix16:
      if (encoding.definition != qnn::kDefined || encoding.encoding != qnn::kScaleOffset) {
        throw Failure("the tensor " + name + " has no scale and offset for the whole tensor; "
                      "build the binary with snapbake");
      }
      return {static_cast<qnn::DataType>(tensor.data_type), encoding.scale_offset.scale,
              encoding.scale_offset.offset};
    default:
      throw Failure("the tensor " + name + " has the QNN type " +
                    std::to_string(tensor.data_type) +
                    ", which is none of int32, float16, float32, ufix8, ufix16; build the binary "
                    "with snapbake");
  }
}

std::vector<GraphTensor> graph_tensors(const qnn::Tensor* tensors, std::uint32_t count) {
  std::vector<GraphTensor> result;
  result.reserve(count);
  for (const qnn::Tensor* tensor = tensors; tensor != tensors + count; ++tensor) {
    GraphTensor own{tensor->name,
                    {tensor->dimensions, tensor->dimensions + tensor->rank},
                    stored_form(*tensor),
                    {}};
    std::size_t elements = 1;
    for (const std::uint32_t size : own.shape) elements *= size;
    own.elements.resize(elements * own.form.element_size());
    result.push_back(std::move(own));
  }
  return result;
}

// Returns QNN's tensors with the names, shapes and memory of ours, since those of the description
// end with it.
std::vector<qnn::Tensor> native_tensors(const qnn::Tensor* tensors,
                                        std::vector<GraphTensor>& own) {
  std::vector<qnn::Tensor> result(tensors, tensors + own.size());
  for (std::size_t index = 0; index < own.size(); ++index) {
    qnn::Tensor& tensor = result[index];
    tensor.name = own[index].name.c_str();
    tensor.dimensions = own[index].shape.data();
    tensor.memory_type = qnn::kMemoryRaw;
    tensor.client_buffer = {own[index].elements.data(),
                            static_cast<std::uint32_t>(own[index].elements.size())};
    tensor.is_dynamic_dimensions = nullptr;
    if (!own[index].form.quantized()) tensor.quantize_params.definition = qnn::kUndefined;
  }
  return result;
}

}  // namespace

QnnSystem::QnnSystem(const std::string& folder)
    : library_(folder, "libQnnSystem.so"),
      api_(first_provider<qnn::SystemInterface, qnn::GetSystemProviders>(
          library_, "QnnSystemInterface_getProviders")) {
  require_version(library_, "system", api_->api, qnn::kSystemApi);
}

QnnBackend::QnnBackend(const std::string& folder)
    : library_(folder, "libQnnHtp.so"),
      api_(first_provider<qnn::Interface, qnn::GetProviders>(library_,
                                                             "QnnInterface_getProviders")) {
  require_version(library_, "core", api_->core_api, qnn::kCoreApi);
  check("QnnBackend_create", api_->backend_create(nullptr, nullptr, &handle_));
}

QnnBackend::~QnnBackend() { api_->backend_free(handle_); }

std::string GraphTensor::describe() const {
  std::string words = name + " " + form.describe() + " [";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    words += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return words + "]";
}

Graph::Graph(const QnnBackend& backend, qnn::Handle context, const qnn::GraphInfo& info)
    : backend_(backend),
      name_(info.name),
      inputs_(graph_tensors(info.inputs, info.input_count)),
      outputs_(graph_tensors(info.outputs, info.output_count)),
      native_inputs_(native_tensors(info.inputs, inputs_)),
      native_outputs_(native_tensors(info.outputs, outputs_)) {
  check("QnnGraph_retrieve", backend.api().graph_retrieve(context, name_.c_str(), &handle_));
}

GraphTensor& Graph::find(std::vector<GraphTensor>& tensors, const std::string& name,
                         const char* kind) const {
  for (GraphTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw Failure("the graph " + name_ + " has no " + kind + " " + name +
                "; build the binary with snapbake");
}

void Graph::execute() {
  check("QnnGraph_execute of " + name_,
        backend_.api().graph_execute(
            handle_, native_inputs_.data(), static_cast<std::uint32_t>(native_inputs_.size()),
            native_outputs_.data(), static_cast<std::uint32_t>(native_outputs_.size()), nullptr,
            nullptr));
}

Context::Context(const QnnSystem& system, const QnnBackend& backend, const std::string& path)
    : backend_(backend) {
  const Mapping file(path);
  const Description description(system, file, path);
  const qnn::BinaryInfo& info = description.info();
  if (info.version < 1 || info.version > 3) {
    throw Failure(path + " has a description of version " + std::to_string(info.version) +
                  " and 1 to 3 are known; take the SDK release that compiled it");
  }
  const qnn::Version& core = backend.api().core_api;
  if (core.major != info.core_api.major || core.minor < info.core_api.minor) {
    throw Failure(path + " was compiled by " + info.build_id + " (core API " +
                  text(info.core_api) + "), which is newer than libQnnHtp.so (core API " +
                  text(core) + "); take the libraries of that release or of a later one");
  }
  const bool third = info.version == 3;
  const qnn::GraphInfo* graphs = third ? info.v3.graphs : info.v1.graphs;
  const std::uint32_t count = third ? info.v3.graph_count : info.v1.graph_count;
  if (kEmulator && count > 1) {
    throw Failure(path + " holds " + std::to_string(count) +
                  " graphs with shared weights, at which the emulator of a PC ends the process; "
                  "give prefill.bin and decode.bin");
  }
  check("loading " + path + ", QnnContext_createFromBinary",
        backend.api().context_create_from_binary(backend.handle(), nullptr, nullptr, file.bytes(),
                                                 file.size(), &handle_, nullptr));
  try {
    for (const qnn::GraphInfo* graph = graphs; graph != graphs + count; ++graph) {
      if (graph->version < 1 || graph->version > 3) {
        throw Failure(path + " describes a graph in version " + std::to_string(graph->version) +
                      " and 1 to 3 are known; take the SDK release that compiled it");
      }
      graphs_.push_back(std::make_unique<Graph>(backend, handle_, *graph));
    }
  } catch (...) {
    backend_.api().context_free(handle_, nullptr);
    throw;
  }
}

Context::~Context() { backend_.api().context_free(handle_, nullptr); }

}  // namespace snapbake
