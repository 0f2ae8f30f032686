// A QNN context binary on the HTP backend: the libraries, the context, its graphs and tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qnn_min.h"
#include "shared_library.h"
#include "stored_form.h"

namespace snapbake {

// libQnnSystem.so, which reads what a binary says about itself.
class QnnSystem {
 public:
  explicit QnnSystem(const std::string& folder);
  const qnn::SystemInterface& api() const { return *api_; }

 private:
  SharedLibrary library_;
  const qnn::SystemInterface* api_;
};

// libQnnHtp.so and one backend of it: the NPU on a phone, its emulator on a PC.
class QnnBackend {
 public:
  explicit QnnBackend(const std::string& folder);
  QnnBackend(const QnnBackend&) = delete;
  QnnBackend& operator=(const QnnBackend&) = delete;
  ~QnnBackend();
  const qnn::Interface& api() const { return *api_; }
  qnn::Handle handle() const { return handle_; }

 private:
  SharedLibrary library_;
  const qnn::Interface* api_;
  qnn::Handle handle_ = nullptr;
};

// An input or output of a graph with memory of its own, which stays the same between executions.
struct GraphTensor {
  std::string name;
  std::vector<std::uint32_t> shape;
  StoredForm form;
  std::vector<std::byte> elements;

  std::string describe() const;  // name, type and shape, for messages
};

class Graph {
 public:
  Graph(const QnnBackend& backend, qnn::Handle context, const qnn::GraphInfo& info);

  const std::string& name() const { return name_; }
  std::size_t input_count() const { return inputs_.size(); }
  std::size_t output_count() const { return outputs_.size(); }
  // Find a tensor by its name; a Failure says which one the graph lacks.
  GraphTensor& input(const std::string& name) { return find(inputs_, name, "input"); }
  GraphTensor& output(const std::string& name) { return find(outputs_, name, "output"); }

  // Computes the outputs from the inputs.
  void execute();

 private:
  GraphTensor& find(std::vector<GraphTensor>& tensors, const std::string& name,
                    const char* kind) const;

  const QnnBackend& backend_;
  std::string name_;
  qnn::Handle handle_ = nullptr;
  std::vector<GraphTensor> inputs_, outputs_;
  std::vector<qnn::Tensor> native_inputs_, native_outputs_;
};

// A loaded binary. The file is not needed any more once it is loaded.
class Context {
 public:
  Context(const QnnSystem& system, const QnnBackend& backend, const std::string& path);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  std::vector<std::unique_ptr<Graph>>& graphs() { return graphs_; }

 private:
  const QnnBackend& backend_;
  qnn::Handle handle_ = nullptr;
  std::vector<std::unique_ptr<Graph>> graphs_;
};

}  // namespace snapbake
