#include "genie_dialog.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdio>
#include <exception>
#include <map>
#include <utility>

namespace snapbake {
namespace {

// What Genie logged, by its log's handle: its callback is given nothing else.
class LogLines {
 public:
  static LogLines& all() {
    static LogLines lines;
    return lines;
  }

  void add(genie::Handle log, const std::string& line) {
    const std::lock_guard lock(mutex_);
    std::string& known = lines_[log];
    if (known.size() < kMost) known += (known.empty() ? "" : " | ") + line;
  }

  std::string take(genie::Handle log) {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_[log], {});
  }

  void forget(genie::Handle log) {
    const std::lock_guard lock(mutex_);
    lines_.erase(log);
  }

 private:
  static constexpr std::size_t kMost = 4000;
  std::mutex mutex_;
  std::map<genie::Handle, std::string> lines_;
};

void keep_line(genie::Handle log, const char* format, std::int32_t /*level*/,
               std::uint64_t /*time*/, va_list arguments) {
  char line[1000];
  if (std::vsnprintf(line, sizeof(line), format, arguments) < 0) return;
  std::string text = line;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  LogLines::all().add(log, text);
}

// Genie opens QNN's libraries by their bare names, which finds those that are loaded already.
std::vector<std::unique_ptr<SharedLibrary>> load_qnn(const std::string& folder) {
  std::vector<std::unique_ptr<SharedLibrary>> libraries;
  if (folder.empty()) return libraries;
  for (const char* name : {"libQnnHtp.so", "libQnnSystem.so", "libQnnHtpNetRunExtensions.so"}) {
    libraries.push_back(std::make_unique<SharedLibrary>(folder, name));
  }
  return libraries;
}

// Genie uses the memory of its KV cache as malloc gives it. In half precision what lies there can be
// so large that the mask does not hide it, so it has to be zero. Android's malloc gives zeros.
void zero_new_memory() {
#ifdef __GLIBC__
  mallopt(M_PERTURB, 0xFF);  // new memory is filled with the complement
#endif
}

const char* meaning(genie::Status status) {
  switch (status) {
    case -2:
      return "invalid argument";
    case -3:
      return "memory allocation";
    case -4:
      return "invalid configuration";
    case -5:
      return "invalid handle";
    case -6:
      return "query failed";
    case -7:
      return "the configuration is no JSON";
    case -8:
      return "the configuration has a key or type that Genie does not know";
    case -9:
      return "a value in the configuration is not allowed";
    case -10:
      return "generation failed";
    default:
      return "";
  }
}

// A listener and what became of it; Genie's callbacks get it as their user data.
template <typename... Piece>
struct Listening {
  const std::function<bool(Piece...)>& listener;
  std::function<void()> stop;
  std::function<bool()> stopping;
  std::exception_ptr error;

  void hand_over(Piece... piece) {
    if (!stopping()) {
      try {
        if (listener(piece...)) return;
      } catch (...) {  // must not cross Genie's frames
        error = std::current_exception();
      }
    }
    stop();
  }
};

}  // namespace

GenieDialog::GenieDialog(const std::string& folder, const std::string& config)
    : qnn_libraries_(load_qnn(folder)),
      library_(folder, "libGenie.so"),
      signal_(library_.find<genie::DialogSignal>("GenieDialog_signal")) {
  zero_new_memory();
  log_ = create_log();
  config_ = create_config(config);
  dialog_ = create_dialog();
}

GenieDialog::Owned GenieDialog::create_log() {
  const std::uint32_t major = library_.get<genie::GetApiVersion>("Genie_getApiMajorVersion")();
  if (major != genie::kMajorVersion) {
    throw Failure(library_.path() + " has Genie API " + std::to_string(major) + " and " +
                  std::to_string(genie::kMajorVersion) +
                  " is needed; take the libraries of the SDK release that compiled the binary");
  }
  genie::Handle log = nullptr;
  check("GenieLog_create", library_.get<genie::LogCreate>("GenieLog_create")(
                               nullptr, &keep_line, genie::kLogErrors, &log));
  auto* release = library_.get<genie::LogFree>("GenieLog_free");
  return Owned(log, [release](genie::Handle handle) {
    release(handle);
    LogLines::all().forget(handle);
  });
}

GenieDialog::Owned GenieDialog::create_config(const std::string& config) {
  genie::Handle handle = nullptr;
  check("GenieDialogConfig_createFromJson",
        library_.get<genie::ConfigCreateFromJson>("GenieDialogConfig_createFromJson")(
            config.c_str(), &handle));
  Owned owned(handle, library_.get<genie::ConfigFree>("GenieDialogConfig_free"));
  check("GenieDialogConfig_bindLogger",
        library_.get<genie::ConfigBindLogger>("GenieDialogConfig_bindLogger")(handle,
                                                                              log_.get()));
  return owned;
}

GenieDialog::Owned GenieDialog::create_dialog() {
  genie::Handle handle = nullptr;
  check("GenieDialog_create", library_.get<genie::DialogCreate>("GenieDialog_create")(
                                  config_.get(), &handle));
  return Owned(handle, library_.get<genie::DialogFree>("GenieDialog_free"));
}

void GenieDialog::check(const char* call, genie::Status status) const {
  const std::string logged = log_ ? LogLines::all().take(log_.get()) : "";
  if (status >= 0) return;
  const std::string words = meaning(status);
  throw Failure(std::string(call) + " returned " + std::to_string(status) +
                (words.empty() ? "" : " (" + words + ")") +
                (logged.empty() ? "; compare genie_config.json with the bundle's own"
                                : ": " + logged));
}

Ending GenieDialog::query(const std::string& prompt,
                          const std::function<bool(const char*)>& listener) {
  Listening<const char*> listening{listener, [this] { stop(); }, [this] { return stopping(); },
                                   nullptr};
  const auto callback = [](const char* text, std::int32_t, const void* user) {
    if (text == nullptr || *text == '\0') return;
    static_cast<Listening<const char*>*>(const_cast<void*>(user))->hand_over(text);
  };
  auto* call = library_.get<genie::DialogQuery>("GenieDialog_query");
  const Ending ending = run("GenieDialog_query", [&] {
    return call(dialog_.get(), prompt.c_str(), genie::kWholeQuery, callback, &listening);
  });
  if (listening.error) std::rethrow_exception(listening.error);
  return ending;
}

Ending GenieDialog::query(
    const std::vector<std::uint32_t>& prompt,
    const std::function<bool(const std::uint32_t*, std::size_t)>& listener) {
  using Tokens = Listening<const std::uint32_t*, std::size_t>;
  Tokens listening{listener, [this] { stop(); }, [this] { return stopping(); }, nullptr};
  const auto callback = [](const std::uint32_t* tokens, std::uint32_t count, std::int32_t,
                           const void* user) {
    if (tokens == nullptr || count == 0) return;
    static_cast<Tokens*>(const_cast<void*>(user))->hand_over(tokens, count);
  };
  auto* call = library_.get<genie::DialogTokenQuery>("GenieDialog_tokenQuery");
  const Ending ending = run("GenieDialog_tokenQuery", [&] {
    return call(dialog_.get(), prompt.data(), static_cast<std::uint32_t>(prompt.size()),
                genie::kWholeQuery, callback, &listening);
  });
  if (listening.error) std::rethrow_exception(listening.error);
  return ending;
}

Ending GenieDialog::run(const char* call, const std::function<genie::Status()>& query) {
  const std::lock_guard one(one_query_);
  {
    const std::lock_guard lock(state_);
    if (closed_) return Ending::kStopped;
    running_ = true;
    stopping_ = false;
  }
  const genie::Status status = query();
  bool stopped;
  {
    const std::lock_guard lock(state_);
    running_ = false;
    stopped = stopping_;
  }
  if (stopped || status == genie::kAborted) {
    // Some releases report a stopped query as failed.
    LogLines::all().take(log_.get());
    return Ending::kStopped;
  }
  check(call, status);
  return status == genie::kContextExceeded ? Ending::kContextFull : Ending::kComplete;
}

bool GenieDialog::stopping() {
  const std::lock_guard lock(state_);
  return stopping_;
}

void GenieDialog::stop() {
  const std::lock_guard lock(state_);
  if (!running_) return;
  stopping_ = true;
  // A release without the signal goes on to the end of the answer, which is not handed over.
  if (signal_ != nullptr) signal_(dialog_.get(), genie::kAbort);
}

void GenieDialog::close() {
  {
    const std::lock_guard lock(state_);
    closed_ = true;
  }
  stop();
}

void GenieDialog::reset() {
  const std::lock_guard lock(one_query_);
  check("GenieDialog_reset", library_.get<genie::DialogReset>("GenieDialog_reset")(dialog_.get()));
}

void GenieDialog::set_max_tokens(std::uint32_t count) {
  const std::lock_guard lock(one_query_);
  check("GenieDialog_setMaxNumTokens",
        library_.get<genie::DialogSetMaxNumTokens>("GenieDialog_setMaxNumTokens")(dialog_.get(),
                                                                                   count));
}

}  // namespace snapbake
