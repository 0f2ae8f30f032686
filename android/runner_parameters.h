// What the graphs do not say about the model: the file runner.json of a bundle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snapbake {

struct RunnerParameters {
  float mask_value;                         // added to the scores of what must not be seen
  std::vector<float> inverse_frequencies;   // radians a token, one for each pair of a head
  float rope_gain;                          // of cosine and sine
  std::vector<std::int32_t> stop_tokens;    // any of them ends an answer
};

// Reads a flat JSON object with exactly the keys mask_value, inverse_frequencies, rope_gain and
// stop_tokens, numbers and lists of numbers. A Failure says what is wrong and where.
RunnerParameters read_runner_parameters(const std::string& path);

}  // namespace snapbake
