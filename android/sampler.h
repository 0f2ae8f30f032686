// Choosing the next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace snapbake {

struct SamplerSettings {
  float temperature = 0.0F;   // 0: always the likeliest token
  std::size_t top_k = 0;      // only the k likeliest; 0: all
  float top_p = 1.0F;         // of these, the likeliest that have at least this probability together
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerSettings& settings);

  // Returns the chosen token. A Failure when the logits are not finite, as a graph that overflowed
  // leaves them.
  std::int32_t choose(const std::vector<float>& logits);

 private:
  double uniform();  // in [0, 1), the same on every machine

  SamplerSettings settings_;
  std::mt19937_64 random_;
};

}  // namespace snapbake
