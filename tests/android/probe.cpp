// Lets a test call parts of android/ with its own data: standard input in, standard output out.
//   half             float32s to halves        real             halves to float32s
//   decode N         UTF-8 in pieces of N bytes to UTF-16      encode  UTF-16 to UTF-8
//   sample T K P S   one token for each 8 bytes, logits 1 to 5
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "sampler.h"
#include "stored_form.h"
#include "utf_text.h"

template <typename Element>
std::vector<Element> elements(const std::string& bytes) {
  std::vector<Element> result(bytes.size() / sizeof(Element));
  std::memcpy(result.data(), bytes.data(), result.size() * sizeof(Element));
  return result;
}

template <typename Sequence>
void write(const Sequence& values) {
  std::cout.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(values[0])));
}

int main(int, char** words) {
  const std::string bytes(std::istreambuf_iterator<char>(std::cin), {});
  const std::string what = words[1];
  if (what == "half") {
    std::vector<std::uint16_t> halves;
    for (const float each : elements<float>(bytes)) halves.push_back(snapbake::half_of(each));
    write(halves);
  } else if (what == "real") {
    std::vector<float> reals;
    for (const auto each : elements<std::uint16_t>(bytes)) {
      reals.push_back(snapbake::real_of_half(each));
    }
    write(reals);
  } else if (what == "decode") {
    snapbake::Utf8Decoder decoder;
    std::u16string text;
    const std::size_t size = std::stoul(words[2]);
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      text += decoder.decode(std::string_view(bytes).substr(at, size));
    }
    write(text + decoder.finish());
  } else if (what == "encode") {
    const auto units = elements<char16_t>(bytes);
    write(snapbake::utf8_of({units.data(), units.size()}));
  } else if (what == "sample") {
    snapbake::Sampler sampler(
        {std::stof(words[2]), std::stoul(words[3]), std::stof(words[4]), std::stoull(words[5])});
    std::vector<std::int32_t> tokens;
    while (tokens.size() < bytes.size() / 8) tokens.push_back(sampler.choose({1, 2, 3, 4, 5}));
    write(tokens);
  }
}
