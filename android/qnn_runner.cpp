// Runs a language model that snapbake built, with QNN alone: backend, context from binary, graphs,
// tensors, execute. On a phone it uses the NPU, on a PC the emulator.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "decoder.h"
#include "qnn_context.h"
#include "runner_parameters.h"
#include "sampler.h"

namespace snapbake {
namespace {

constexpr char kUsage[] = R"(usage: qnn_runner --parameters FILE --binary BIN [--binary BIN] [options]

Continues a prompt given as token ids and prints the ids that follow, one a line.

  --parameters FILE    runner.json of the bundle
  --binary BIN         context.bin with both graphs, or prefill.bin and decode.bin, each with
                       its own --binary; a PC takes the two only
  --libraries FOLDER   of libQnnHtp.so and libQnnSystem.so; default: where the loader looks
  --tokens FILE        the prompt, ids apart by blanks; default: standard input
  --count N            stop after N tokens; default: a stop token or the end of the context
  --temperature T      0, the default, always takes the likeliest token
  --top-k K            choose among the K likeliest
  --top-p P            choose among the likeliest that have probability P together
  --seed S             of the choice, default 0
  --help

A stop token is printed too, as the last one. Times are printed to standard error.
)";

struct Options {
  std::string parameters, libraries, tokens;
  std::vector<std::string> binaries;
  std::size_t count = std::numeric_limits<std::size_t>::max();
  SamplerSettings sampler;
};

template <typename Number>
Number number(const std::string& name, const std::string& text,
              Number (*convert)(const char*, char**)) {
  char* end = nullptr;
  errno = 0;
  const Number value = convert(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || errno != 0) {
    throw Failure(name + " " + text + " is no number that it can be; see --help");
  }
  return value;
}

std::uint64_t whole(const std::string& name, const std::string& text) {
  if (text.find('-') != std::string::npos) {
    throw Failure(name + " " + text + " is below 0; see --help");
  }
  return number<unsigned long long>(
      name, text, [](const char* start, char** end) { return std::strtoull(start, end, 10); });
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  const std::map<std::string, std::function<void(const std::string&, const std::string&)>> known{
      {"--parameters", [&](auto&, auto& text) { options.parameters = text; }},
      {"--binary", [&](auto&, auto& text) { options.binaries.push_back(text); }},
      {"--libraries", [&](auto&, auto& text) { options.libraries = text; }},
      {"--tokens", [&](auto&, auto& text) { options.tokens = text; }},
      {"--count", [&](auto& name, auto& text) { options.count = whole(name, text); }},
      {"--temperature",
       [&](auto& name, auto& text) {
         options.sampler.temperature = number<float>(name, text, std::strtof);
       }},
      {"--top-k", [&](auto& name, auto& text) { options.sampler.top_k = whole(name, text); }},
      {"--top-p",
       [&](auto& name, auto& text) {
         options.sampler.top_p = number<float>(name, text, std::strtof);
       }},
      {"--seed", [&](auto& name, auto& text) { options.sampler.seed = whole(name, text); }},
  };
  for (std::size_t index = 0; index < words.size(); index += 2) {
    const auto option = known.find(words[index]);
    if (option == known.end()) throw Failure(words[index] + " is no option; see --help");
    if (index + 1 == words.size()) throw Failure(words[index] + " has no value; see --help");
    option->second(words[index], words[index + 1]);
  }
  if (options.parameters.empty() || options.binaries.empty()) {
    throw Failure("--parameters and --binary are needed; see --help");
  }
  return options;
}

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::ifstream file;
  if (!path.empty()) {
    file.open(path);
    if (!file) throw Failure(path + " cannot be opened: " + std::strerror(errno));
  }
  std::istream& stream = path.empty() ? std::cin : file;
  std::vector<std::int32_t> tokens;
  for (std::int32_t token; stream >> token;) tokens.push_back(token);
  if (!stream.eof()) {
    throw Failure((path.empty() ? "standard input" : path) + " has something that is no token id " +
                  "behind " + std::to_string(tokens.size()) + " ids; give whole numbers");
  }
  return tokens;
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Standard output for the tokens alone: what QNN's libraries print there goes to standard error.
class TokenOutput {
 public:
  TokenOutput() : stream_(fdopen(dup(STDOUT_FILENO), "w")) {
    if (stream_ == nullptr || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
      throw Failure(std::string("standard output cannot be used: ") + std::strerror(errno));
    }
  }
  TokenOutput(const TokenOutput&) = delete;
  TokenOutput& operator=(const TokenOutput&) = delete;
  ~TokenOutput() { std::fclose(stream_); }

  // Writes at once, for whoever reads along.
  void write(std::int32_t token) {
    if (std::fprintf(stream_, "%d\n", token) < 0 || std::fflush(stream_) != 0) {
      throw Failure(std::string("standard output cannot be written: ") + std::strerror(errno));
    }
  }

 private:
  std::FILE* stream_;
};

void run(const Options& options) {
  TokenOutput output;
  const RunnerParameters parameters = read_runner_parameters(options.parameters);
  const std::vector<std::int32_t> prompt = read_tokens(options.tokens);
  Sampler sampler(options.sampler);

  const Stopwatch load_time;
  const QnnSystem system(options.libraries);
  const QnnBackend backend(options.libraries);
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<Graph*> graphs;
  for (const std::string& binary : options.binaries) {
    contexts.push_back(std::make_unique<Context>(system, backend, binary));
    for (auto& graph : contexts.back()->graphs()) graphs.push_back(graph.get());
  }
  Decoder decoder(graphs, parameters);
  std::cerr << "loaded in " << load_time.seconds() << " s\n";

  const Stopwatch prompt_time;
  const std::vector<float>* logits = &decoder.read(prompt);
  std::cerr << "read " << prompt.size() << " tokens in " << prompt_time.seconds() << " s\n";

  const Stopwatch answer_time;
  std::size_t chosen = 0;
  while (chosen < options.count) {
    if (decoder.length() == decoder.context()) {
      std::cerr << "the context of " << decoder.context() << " tokens is full\n";
      break;
    }
    const std::int32_t token = sampler.choose(*logits);
    output.write(token);
    ++chosen;
    bool stop = chosen == options.count;
    for (const std::int32_t each : parameters.stop_tokens) stop = stop || token == each;
    if (stop) break;
    logits = &decoder.read({token});
  }
  std::cerr << "wrote " << chosen << " tokens in " << answer_time.seconds() << " s\n";
}

}  // namespace
}  // namespace snapbake

int main(int count, char** words) {
  try {
    const std::vector<std::string> arguments(words + 1, words + count);
    for (const std::string& argument : arguments) {
      if (argument == "--help") {
        std::cout << snapbake::kUsage;
        return 0;
      }
    }
    snapbake::run(snapbake::parse(arguments));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
