#include "runner_parameters.h"

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "failure.h"

namespace snapbake {
namespace {

// A reader of one flat JSON object whose values are numbers and lists of numbers.
class FlatJson {
 public:
  explicit FlatJson(const std::string& path) : path_(path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) throw Failure(path + " cannot be opened: " + std::strerror(errno));
    text_.assign(std::istreambuf_iterator<char>(stream), {});
    expect('{');
    if (!take('}')) {
      do {
        const std::string key = string();
        expect(':');
        if (!values_.emplace(key, value()).second) throw wrong("a second " + key);
      } while (take(','));
      expect('}');
    }
    skip_blanks();
    if (at_ != text_.size()) throw wrong("more text behind the object");
  }

  std::vector<double> list(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end() || !found->second.is_list) {
      throw Failure(path_ + " has no list " + key + "; take the file of the bundle again");
    }
    return found->second.numbers;
  }

  double number(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end() || found->second.is_list) {
      throw Failure(path_ + " has no number " + key + "; take the file of the bundle again");
    }
    return found->second.numbers[0];
  }

  std::size_t size() const { return values_.size(); }

 private:
  struct Value {
    bool is_list;
    std::vector<double> numbers;
  };

  Failure wrong(const std::string& found) const {
    return Failure(path_ + " is no flat JSON object: " + found + " at byte " +
                   std::to_string(at_) + "; take the file of the bundle again");
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  bool take(char wanted) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) throw wrong(std::string("no ") + wanted);
  }

  std::string string() {
    expect('"');
    const std::size_t end = text_.find('"', at_);
    if (end == std::string::npos) throw wrong("a name without an end");
    const std::string name = text_.substr(at_, end - at_);
    at_ = end + 1;
    return name;
  }

  double number() {
    skip_blanks();
    const char* start = text_.c_str() + at_;
    char* end = nullptr;
    const double result = std::strtod(start, &end);
    if (end == start || !std::isfinite(result)) throw wrong("no finite number");
    at_ += static_cast<std::size_t>(end - start);
    return result;
  }

  Value value() {
    if (!take('[')) return {false, {number()}};
    Value list{true, {}};
    if (take(']')) return list;
    do {
      list.numbers.push_back(number());
    } while (take(','));
    expect(']');
    return list;
  }

  std::string path_, text_;
  std::size_t at_ = 0;
  std::map<std::string, Value> values_;
};

template <typename Number>
std::vector<Number> converted(const std::vector<double>& numbers) {
  std::vector<Number> result;
  for (const double number : numbers) result.push_back(static_cast<Number>(number));
  return result;
}

}  // namespace

RunnerParameters read_runner_parameters(const std::string& path) {
  FlatJson json(path);
  RunnerParameters parameters{static_cast<float>(json.number("mask_value")),
                              converted<float>(json.list("inverse_frequencies")),
                              static_cast<float>(json.number("rope_gain")),
                              converted<std::int32_t>(json.list("stop_tokens"))};
  if (json.size() != 4) {
    throw Failure(path + " has keys that this program does not know; take file and program out of "
                         "one bundle");
  }
  return parameters;
}

}  // namespace snapbake
