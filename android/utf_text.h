// Text between Genie, which has UTF-8, and Java, which has UTF-16.
//
// JNI's own UTF functions have a variant of UTF-8 in which characters beyond U+FFFF are other
// bytes, so they are not used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snapbake {

// Decodes UTF-8 that comes in pieces which can end inside of a character. What is no UTF-8 becomes
// U+FFFD, as the WHATWG Encoding Standard says.
class Utf8Decoder {
 public:
  // Returns the characters that are complete with this piece.
  std::u16string decode(std::string_view piece);
  // Returns U+FFFD when the text ended inside of a character.
  std::u16string finish();

 private:
  void restart();

  std::uint32_t code_point_ = 0;
  int missing_ = 0;  // bytes of the character to come
  std::uint8_t lowest_ = 0x80, highest_ = 0xBF;  // of the next one
};

// Returns UTF-8; a surrogate without its other half becomes U+FFFD.
std::string utf8_of(std::u16string_view text);

}  // namespace snapbake
