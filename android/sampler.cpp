#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "failure.h"

namespace snapbake {

Sampler::Sampler(const SamplerSettings& settings) : settings_(settings), random_(settings.seed) {
  if (!(settings.temperature >= 0.0F) || !std::isfinite(settings.temperature)) {
    throw Failure("the temperature is not a number from 0 on; 0 chooses the likeliest token");
  }
  if (!(settings.top_p > 0.0F && settings.top_p <= 1.0F)) {
    throw Failure("top-p is not above 0 and at most 1; 1 leaves it out");
  }
}

std::int32_t Sampler::choose(const std::vector<float>& logits) {
  if (!std::all_of(logits.begin(), logits.end(), [](float each) { return std::isfinite(each); })) {
    throw Failure("the logits are not finite: the graph overflowed; verify the build");
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  if (settings_.temperature == 0.0F) {
    return static_cast<std::int32_t>(best - logits.begin());
  }
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::size_t kept =
      settings_.top_k == 0 ? tokens.size() : std::min(settings_.top_k, tokens.size());
  const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(kept);
  // Equal logits in the order of their tokens, so that one seed gives one text everywhere.
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](std::int32_t one, std::int32_t other) {
    const float left = logits[static_cast<std::size_t>(one)];
    const float right = logits[static_cast<std::size_t>(other)];
    return left != right ? left > right : one < other;
  });
  std::vector<double> weights;
  for (auto token = tokens.begin(); token != end; ++token) {
    const double distance = logits[static_cast<std::size_t>(*token)] - *best;
    weights.push_back(std::exp(distance / settings_.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t count = 0;
  double sum = 0.0;
  do {
    sum += weights[count++];
  } while (count < weights.size() && sum < settings_.top_p * total);
  double rest = uniform() * sum;
  for (std::size_t index = 0; index < count; ++index) {
    rest -= weights[index];
    if (rest < 0.0) return tokens[index];
  }
  return tokens[count - 1];
}

// std::uniform_real_distribution is another one in every standard library.
double Sampler::uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }

}  // namespace snapbake
