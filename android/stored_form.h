// How real numbers are stored at a graph's border.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "qnn_min.h"

namespace snapbake {

// The element type of a tensor, and its encoding where the elements are codes:
// real = (code + offset) x scale.
struct StoredForm {
  qnn::DataType type;
  float scale = 1.0F;
  std::int32_t offset = 0;

  bool quantized() const { return type == qnn::kUfix8 || type == qnn::kUfix16; }
  bool operator==(const StoredForm& other) const {
    return type == other.type && scale == other.scale && offset == other.offset;
  }
  bool operator!=(const StoredForm& other) const { return !(*this == other); }

  std::size_t element_size() const;
  std::string describe() const;

  // Stores a number as element `index`; what lies outside the range saturates.
  void store(float real, std::byte* elements, std::size_t index) const;
  float load(const std::byte* elements, std::size_t index) const;

  void fill(float real, std::vector<std::byte>& elements) const;
};

// IEEE 754 half precision, rounded to the nearest, ties to even.
std::uint16_t half_of(float real);
float real_of_half(std::uint16_t half);

}  // namespace snapbake
