#include "utf_text.h"

#include <cstddef>

namespace snapbake {
namespace {

constexpr char16_t kReplacement = 0xFFFD;

void append(std::u16string& text, std::uint32_t code_point) {
  if (code_point < 0x10000) {
    text += static_cast<char16_t>(code_point);
  } else {
    text += static_cast<char16_t>(0xD800 + ((code_point - 0x10000) >> 10));
    text += static_cast<char16_t>(0xDC00 + ((code_point - 0x10000) & 0x3FF));
  }
}

void append(std::string& text, std::uint32_t code_point) {
  const auto byte = [&](std::uint32_t value) { text += static_cast<char>(value); };
  if (code_point < 0x80) {
    byte(code_point);
    return;
  }
  if (code_point < 0x800) {
    byte(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      byte(0xE0 | code_point >> 12);
    } else {
      byte(0xF0 | code_point >> 18);
      byte(0x80 | (code_point >> 12 & 0x3F));
    }
    byte(0x80 | (code_point >> 6 & 0x3F));
  }
  byte(0x80 | (code_point & 0x3F));
}

}  // namespace

void Utf8Decoder::restart() {
  missing_ = 0;
  lowest_ = 0x80;
  highest_ = 0xBF;
}

std::u16string Utf8Decoder::decode(std::string_view piece) {
  std::u16string text;
  for (const char each : piece) {
    const auto byte = static_cast<std::uint8_t>(each);
    if (missing_ > 0) {
      if (byte >= lowest_ && byte <= highest_) {
        lowest_ = 0x80;
        highest_ = 0xBF;
        code_point_ = code_point_ << 6 | (byte & 0x3FU);
        if (--missing_ == 0) append(text, code_point_);
        continue;
      }
      text += kReplacement;  // for the bytes before; this one begins anew
      restart();
    }
    if (byte < 0x80) {
      text += static_cast<char16_t>(byte);
    } else if (byte >= 0xC2 && byte <= 0xDF) {
      missing_ = 1;
      code_point_ = byte & 0x1FU;
    } else if (byte >= 0xE0 && byte <= 0xEF) {
      missing_ = 2;
      code_point_ = byte & 0xFU;
      if (byte == 0xE0) lowest_ = 0xA0;   // shorter forms exist below
      if (byte == 0xED) highest_ = 0x9F;  // surrogates lie above
    } else if (byte >= 0xF0 && byte <= 0xF4) {
      missing_ = 3;
      code_point_ = byte & 0x7U;
      if (byte == 0xF0) lowest_ = 0x90;
      if (byte == 0xF4) highest_ = 0x8F;  // Unicode ends there
    } else {
      text += kReplacement;
    }
  }
  return text;
}

std::u16string Utf8Decoder::finish() {
  if (missing_ == 0) return {};
  restart();
  return {kReplacement};
}

std::string utf8_of(std::u16string_view text) {
  std::string result;
  for (std::size_t index = 0; index < text.size(); ++index) {
    std::uint32_t code_point = text[index];
    const bool high = code_point >= 0xD800 && code_point < 0xDC00;
    const bool low = code_point >= 0xDC00 && code_point < 0xE000;
    if (high && index + 1 < text.size() && text[index + 1] >= 0xDC00 && text[index + 1] < 0xE000) {
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (text[++index] - 0xDC00U);
    } else if (high || low) {
      code_point = kReplacement;
    }
    append(result, code_point);
  }
  return result;
}

}  // namespace snapbake
