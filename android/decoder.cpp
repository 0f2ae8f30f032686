#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace snapbake {
namespace {

void require_shape(const Graph& graph, const GraphTensor& tensor,
                   const std::vector<std::size_t>& shape) {
  if (std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end())) return;
  std::string wanted;
  for (const std::size_t size : shape) {
    wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
  }
  throw Failure("the graph " + graph.name() + " has " + tensor.describe() + " where [" + wanted +
                "] is needed; build the binary with snapbake");
}

std::size_t axis(const Graph& graph, const GraphTensor& tensor, std::size_t index) {
  if (index >= tensor.shape.size()) {
    throw Failure("the graph " + graph.name() + " has " + tensor.describe() +
                  ", which has too few axes; build the binary with snapbake");
  }
  return tensor.shape[index];
}

void require_real(const Graph& graph, const GraphTensor& tensor) {
  if (tensor.form.type == qnn::kInt32) {
    throw Failure("the graph " + graph.name() + " has " + tensor.describe() +
                  ", which must hold real numbers; build the binary with snapbake");
  }
}

}  // namespace

Decoder::Decoder(const std::vector<Graph*>& graphs, RunnerParameters parameters)
    : parameters_(std::move(parameters)) {
  if (graphs.size() != 2) {
    throw Failure("the binaries hold " + std::to_string(graphs.size()) +
                  " graphs and a prefill and a decode graph are needed; give one binary of both or "
                  "two of one each");
  }
  prefill_ = bind(*graphs[0]);
  decode_ = bind(*graphs[1]);
  if (prefill_.tokens < decode_.tokens) std::swap(prefill_, decode_);
  context_ = decode_.past + decode_.tokens;
  logits_.resize(decode_.logits->shape[2]);
  require_pair();
  const std::size_t half = decode_.cosine->shape[3];
  if (parameters_.inverse_frequencies.size() != half) {
    throw Failure("the parameters have " +
                  std::to_string(parameters_.inverse_frequencies.size()) +
                  " inverse frequencies and the graphs take " + std::to_string(half) +
                  "; use the parameters of the same bundle");
  }
  for (Step* step : {&prefill_, &decode_}) {
    for (const auto* cache : {&step->keys, &step->values}) {
      for (const Cached& cached : *cache) cached.in->form.fill(0.0F, cached.in->elements);
    }
  }
}

Decoder::Step Decoder::bind(Graph& graph) {
  Step step{};
  step.graph = &graph;
  step.ids = &graph.input("input_ids");
  step.mask = &graph.input("attention_mask");
  step.cosine = &graph.input("position_ids_cos");
  step.sine = &graph.input("position_ids_sin");
  step.logits = &graph.output("logits");
  step.tokens = axis(graph, *step.ids, 1);
  const std::size_t context = axis(graph, *step.mask, 3);
  const std::size_t half = axis(graph, *step.cosine, 3);
  const GraphTensor& key = graph.input("past_key_0_in");
  const std::size_t heads = axis(graph, key, 1), width = axis(graph, key, 2);
  const std::size_t tokens = step.tokens;
  if (step.ids->form.type != qnn::kInt32 || context <= tokens || width != 2 * half) {
    throw Failure("the graph " + graph.name() + " has " + step.ids->describe() + ", " +
                  step.mask->describe() + ", " + step.cosine->describe() + " and " +
                  key.describe() + ", which do not fit together; build the binary with snapbake");
  }
  step.past = context - tokens;
  require_shape(graph, *step.ids, {1, tokens});
  require_shape(graph, *step.mask, {1, 1, tokens, context});
  require_shape(graph, *step.cosine, {1, 1, tokens, half});
  require_shape(graph, *step.sine, {1, 1, tokens, half});
  require_shape(graph, *step.logits, {1, tokens, axis(graph, *step.logits, 2)});
  for (const GraphTensor* tensor : {static_cast<const GraphTensor*>(step.mask),
                                    static_cast<const GraphTensor*>(step.cosine),
                                    static_cast<const GraphTensor*>(step.sine), step.logits}) {
    require_real(graph, *tensor);
  }
  // Ids, mask, cosine and sine; then a key and a value a layer. Out come these and the logits.
  const std::size_t layers = (graph.input_count() - 4) / 2;
  if (graph.input_count() != 4 + 2 * layers || graph.output_count() != 1 + 2 * layers) {
    throw Failure("the graph " + graph.name() + " has " + std::to_string(graph.input_count()) +
                  " inputs and " + std::to_string(graph.output_count()) +
                  " outputs, which no number of layers has; build the binary with snapbake");
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::string number = std::to_string(layer);
    const Cached cached_key{&graph.input("past_key_" + number + "_in"),
                            &graph.output("past_key_" + number + "_out")};
    const Cached cached_value{&graph.input("past_value_" + number + "_in"),
                              &graph.output("past_value_" + number + "_out")};
    require_shape(graph, *cached_key.in, {1, heads, width, step.past});
    require_shape(graph, *cached_key.out, {1, heads, width, tokens});
    require_shape(graph, *cached_value.in, {1, heads, step.past, width});
    require_shape(graph, *cached_value.out, {1, heads, tokens, width});
    for (const Cached& cached : {cached_key, cached_value}) {
      require_real(graph, *cached.in);
      if (cached.in->form != cached.out->form) {
        throw Failure("the graph " + graph.name() + " has " + cached.in->describe() + " and " +
                      cached.out->describe() +
                      ", and the cache cannot be passed on as it is; build the binary with snapbake");
      }
    }
    step.keys.push_back(cached_key);
    step.values.push_back(cached_value);
  }
  return step;
}

void Decoder::require_pair() const {
  const auto differ = [](const GraphTensor& one, const GraphTensor& other) {
    return Failure(one.describe() + " of the one graph and " + other.describe() +
                   " of the other are not of one model; take both graphs out of one build");
  };
  if (decode_.tokens != 1 || prefill_.past + prefill_.tokens != context_) {
    throw differ(*prefill_.mask, *decode_.mask);
  }
  if (prefill_.keys.size() != decode_.keys.size()) {
    throw Failure("one graph has " + std::to_string(prefill_.keys.size()) +
                  " layers and the other " + std::to_string(decode_.keys.size()) +
                  "; take both graphs out of one build");
  }
  if (prefill_.logits->shape[2] != decode_.logits->shape[2]) {
    throw differ(*prefill_.logits, *decode_.logits);
  }
  for (std::size_t layer = 0; layer < decode_.keys.size(); ++layer) {
    for (const auto cache : {&Step::keys, &Step::values}) {
      const GraphTensor& one = *(prefill_.*cache)[layer].in;
      const GraphTensor& other = *(decode_.*cache)[layer].in;
      if (one.form != other.form || one.shape[1] != other.shape[1]) throw differ(one, other);
    }
  }
}

const std::vector<float>& Decoder::read(const std::vector<std::int32_t>& tokens) {
  if (tokens.empty()) throw Failure("there are no tokens; give at least one");
  if (tokens.size() > context_ - length_) {
    throw Failure("the prompt has " + std::to_string(tokens.size()) + " tokens and " +
                  std::to_string(context_ - length_) + " of the context of " +
                  std::to_string(context_) +
                  " are free; shorten it or build the model with a longer context");
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= vocabulary()) {
      throw Failure("the token " + std::to_string(token) + " is outside of the vocabulary of " +
                    std::to_string(vocabulary()) + "; use the tokenizer of the same bundle");
    }
  }
  for (std::size_t position = 0; position < tokens.size();) {
    // A single token goes through the decode graph, and so does what is left where less than a
    // whole chunk of the context is left, as no chunk can start there.
    const std::size_t left = tokens.size() - position;
    Step& step = left > 1 && length_ <= prefill_.past ? prefill_ : decode_;
    const std::size_t count = std::min(step.tokens, left);
    run(step, tokens.data() + position, count);
    position += count;
  }
  return logits_;
}

void Decoder::run(Step& step, const std::int32_t* tokens, std::size_t count) {
  feed(step, tokens, count);
  step.graph->execute();
  append(step, count, prefill_);
  append(step, count, decode_);
  length_ += count;
  for (std::size_t token = 0; token < logits_.size(); ++token) {
    logits_[token] =
        step.logits->form.load(step.logits->elements.data(), (count - 1) * logits_.size() + token);
  }
}

void Decoder::feed(Step& step, const std::int32_t* tokens, std::size_t count) const {
  // Rows beyond the given tokens are padding: id 0, and nothing that they compute is used.
  std::vector<std::int32_t> ids(step.tokens, 0);
  std::copy(tokens, tokens + count, ids.begin());
  std::memcpy(step.ids->elements.data(), ids.data(), ids.size() * sizeof(std::int32_t));
  const std::size_t half = parameters_.inverse_frequencies.size();
  for (std::size_t row = 0; row < step.tokens; ++row) {
    for (std::size_t column = 0; column < context_; ++column) {
      const bool seen = column < step.past ? column < length_ : column - step.past <= row;
      step.mask->form.store(seen ? 0.0F : parameters_.mask_value, step.mask->elements.data(),
                            row * context_ + column);
    }
    for (std::size_t pair = 0; pair < half; ++pair) {
      const float angle =
          static_cast<float>(length_ + row) * parameters_.inverse_frequencies[pair];
      const std::size_t index = row * half + pair;
      step.cosine->form.store(std::cos(angle) * parameters_.rope_gain,
                              step.cosine->elements.data(), index);
      step.sine->form.store(std::sin(angle) * parameters_.rope_gain, step.sine->elements.data(),
                            index);
    }
  }
}

// Writes the first `count` new rows of `from` behind the valid columns of the cache that `to` sees.
void Decoder::append(const Step& from, std::size_t count, Step& to) const {
  if (length_ >= to.past) return;
  const std::size_t fits = std::min(count, to.past - length_);
  for (std::size_t layer = 0; layer < from.keys.size(); ++layer) {
    const GraphTensor& key = *from.keys[layer].out;
    const std::size_t size = key.form.element_size();
    std::byte* keys = to.keys[layer].in->elements.data();
    const std::size_t rows = key.shape[1] * key.shape[2];  // [heads x width, positions]
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(keys + (row * to.past + length_) * size,
                  key.elements.data() + row * from.tokens * size, fits * size);
    }
    const GraphTensor& value = *from.values[layer].out;
    const std::size_t position = value.shape[3] * value.form.element_size();
    std::byte* values = to.values[layer].in->elements.data();
    for (std::size_t head = 0; head < value.shape[1]; ++head) {  // [positions, width] a head
      std::memcpy(values + (head * to.past + length_) * position,
                  value.elements.data() + head * from.tokens * position, fits * position);
    }
  }
}

}  // namespace snapbake
