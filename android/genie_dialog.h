// A dialog of libGenie.so, Qualcomm's runtime for language models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "genie_min.h"
#include "shared_library.h"

namespace snapbake {

enum class Ending { kComplete, kStopped, kContextFull };

class GenieDialog {
 public:
  // Loads libGenie.so and the libraries under it from `folder` (where the loader looks when it is
  // empty), and the model that `config`, the text of a genie_config.json, names. Paths in it are
  // absolute or relative to the working folder.
  GenieDialog(const std::string& folder, const std::string& config);
  GenieDialog(const GenieDialog&) = delete;
  GenieDialog& operator=(const GenieDialog&) = delete;

  // Continue a prompt and hand over what follows as it is made; block until the end. One query runs
  // at a time, others wait. A listener that returns false stops the query. Text comes in pieces of
  // UTF-8 that can end inside of a character.
  Ending query(const std::string& prompt, const std::function<bool(const char*)>& listener);
  Ending query(const std::vector<std::uint32_t>& prompt,
               const std::function<bool(const std::uint32_t*, std::size_t)>& listener);

  // Stops the query that runs, from any thread; without one it does nothing.
  void stop();
  // Stops the query that runs and all that wait.
  void close();
  // Forgets the conversation so far.
  void reset();
  // Limits the tokens of an answer.
  void set_max_tokens(std::uint32_t count);

 private:
  // What Genie created, and the function that frees it.
  using Owned = std::unique_ptr<void, std::function<void(genie::Handle)>>;

  Owned create_log();
  Owned create_config(const std::string& config);
  Owned create_dialog();
  void check(const char* call, genie::Status status) const;
  bool stopping();
  Ending run(const char* call, const std::function<genie::Status()>& query);

  std::vector<std::unique_ptr<SharedLibrary>> qnn_libraries_;
  SharedLibrary library_;
  Owned log_, config_, dialog_;  // in this order: the dialog is freed first
  genie::DialogSignal* signal_;
  std::mutex one_query_;
  std::mutex state_;  // of what follows
  bool running_ = false;
  bool stopping_ = false;
  bool closed_ = false;
};

}  // namespace snapbake
