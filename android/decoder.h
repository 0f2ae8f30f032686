// The loop of a caller of the two graphs: prefill in chunks, then token by token.
//
// The KV cache has one column a position. The new rows of a step are written behind the valid ones
// and the mask hides what is not valid yet ("smart mask", the way of Qualcomm's Genie as well).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "qnn_context.h"
#include "runner_parameters.h"

namespace snapbake {

class Decoder {
 public:
  // Takes one graph for chunks of tokens and one for single tokens, in any order, and checks that
  // they are a pair of snapbake's. The graphs must outlive the decoder.
  Decoder(const std::vector<Graph*>& graphs, RunnerParameters parameters);

  // Reads tokens and returns the logits of the last one, one a token of the vocabulary.
  const std::vector<float>& read(const std::vector<std::int32_t>& tokens);

  std::size_t length() const { return length_; }      // tokens read so far
  std::size_t context() const { return context_; }    // tokens that fit
  std::size_t vocabulary() const { return logits_.size(); }

 private:
  struct Cached {
    GraphTensor* in;
    const GraphTensor* out;
  };
  // A graph with its tensors found by name. Its past inputs hold the cache in stored form.
  struct Step {
    Graph* graph;
    std::size_t tokens;  // that it takes at a time
    std::size_t past;    // columns of the cache that it sees
    GraphTensor *ids, *mask, *cosine, *sine;
    const GraphTensor* logits;
    std::vector<Cached> keys, values;  // one a layer
  };

  static Step bind(Graph& graph);
  void require_pair() const;
  void run(Step& step, const std::int32_t* tokens, std::size_t count);
  void feed(Step& step, const std::int32_t* tokens, std::size_t count) const;
  void append(const Step& from, std::size_t count, Step& to) const;

  RunnerParameters parameters_;
  Step prefill_, decode_;
  std::size_t context_, length_ = 0;
  std::vector<float> logits_;
};

}  // namespace snapbake
