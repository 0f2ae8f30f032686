#include "stored_form.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace snapbake {
namespace {

template <typename Element>
void put(std::byte* elements, std::size_t index, Element value) {
  std::memcpy(elements + index * sizeof(Element), &value, sizeof(Element));
}

template <typename Element>
Element take(const std::byte* elements, std::size_t index) {
  Element value;
  std::memcpy(&value, elements + index * sizeof(Element), sizeof(Element));
  return value;
}

template <typename Code>
Code code_of(float real, const StoredForm& form) {
  const float code = std::nearbyint(real / form.scale) - static_cast<float>(form.offset);
  return static_cast<Code>(
      std::clamp(code, 0.0F, static_cast<float>(std::numeric_limits<Code>::max())));
}

}  // namespace

std::size_t StoredForm::element_size() const {
  switch (type) {
    case qnn::kUfix8:
      return 1;
    case qnn::kFloat16:
    case qnn::kUfix16:
      return 2;
    case qnn::kInt32:
    case qnn::kFloat32:
      return 4;
  }
  return 0;
}

std::string StoredForm::describe() const {
  switch (type) {
    case qnn::kInt32:
      return "int32";
    case qnn::kFloat16:
      return "float16";
    case qnn::kFloat32:
      return "float32";
    case qnn::kUfix8:
    case qnn::kUfix16:
      return std::string(type == qnn::kUfix8 ? "ufix8" : "ufix16") + " (scale " +
             std::to_string(scale) + ", offset " + std::to_string(offset) + ")";
  }
  return "unknown";
}

void StoredForm::store(float real, std::byte* elements, std::size_t index) const {
  switch (type) {
    case qnn::kInt32:
      return put(elements, index, static_cast<std::int32_t>(real));
    case qnn::kFloat16:
      return put(elements, index, half_of(real));
    case qnn::kFloat32:
      return put(elements, index, real);
    case qnn::kUfix8:
      return put(elements, index, code_of<std::uint8_t>(real, *this));
    case qnn::kUfix16:
      return put(elements, index, code_of<std::uint16_t>(real, *this));
  }
}

float StoredForm::load(const std::byte* elements, std::size_t index) const {
  switch (type) {
    case qnn::kInt32:
      return static_cast<float>(take<std::int32_t>(elements, index));
    case qnn::kFloat16:
      return real_of_half(take<std::uint16_t>(elements, index));
    case qnn::kFloat32:
      return take<float>(elements, index);
    case qnn::kUfix8:
      return static_cast<float>(take<std::uint8_t>(elements, index) + offset) * scale;
    case qnn::kUfix16:
      return static_cast<float>(take<std::uint16_t>(elements, index) + offset) * scale;
  }
  return 0.0F;
}

void StoredForm::fill(float real, std::vector<std::byte>& elements) const {
  for (std::size_t index = 0; index < elements.size() / element_size(); ++index) {
    store(real, elements.data(), index);
  }
}

std::uint16_t half_of(float real) {
  std::uint32_t bits;
  std::memcpy(&bits, &real, sizeof(bits));
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);  // not a number
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // infinite
  // The fraction with its leading one, to be shifted to where half precision has its last bit.
  std::uint32_t fraction = magnitude;
  std::uint32_t shift = 13;
  std::uint32_t base = 0;
  if (magnitude >= 0x38800000U) {
    base = ((magnitude >> 23) - 113) << 10;
    fraction = (magnitude & 0x7FFFFFU) | 0x800000U;
  } else {  // subnormal in half precision
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return static_cast<std::uint16_t>(sign);
    shift = 126 - exponent;
    fraction = (magnitude & 0x7FFFFFU) | 0x800000U;
  }
  std::uint32_t kept = fraction >> shift;
  const std::uint32_t rest = fraction & ((1U << shift) - 1);
  const std::uint32_t middle = 1U << (shift - 1);
  if (rest > middle || (rest == middle && (kept & 1U) != 0)) ++kept;
  // The leading one, if kept, counts up the exponent by one, as a carry does.
  return static_cast<std::uint16_t>(sign | (base + kept));
}

float real_of_half(std::uint16_t half) {
  const int exponent = half >> 10 & 0x1F;
  const int fraction = half & 0x3FF;
  float magnitude;
  if (exponent == 0x1F) {
    magnitude = fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                              : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace snapbake
