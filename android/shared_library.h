// A library that is loaded at run time, so that nothing of an SDK is needed to build.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "failure.h"

namespace snapbake {

// On a PC the libraries bring LLVM's C++ runtime. They must not find the functions of another one
// before it, or an exception inside of them ends the process. Sanitizers forbid this mode.
#if defined(RTLD_DEEPBIND) && !defined(__SANITIZE_ADDRESS__)
constexpr int kOwnSymbolsFirst = RTLD_DEEPBIND;
#else
constexpr int kOwnSymbolsFirst = 0;
#endif

class SharedLibrary {
 public:
  // Loads `name` from `folder`, or from where the loader looks when `folder` is empty.
  SharedLibrary(const std::string& folder, const std::string& name)
      : path_(folder.empty() ? name : folder + "/" + name),
        handle_(dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL | kOwnSymbolsFirst)) {
    if (handle_ == nullptr) {
      throw Failure(path_ + " cannot be loaded: " + last_words() +
                    "; name the folder of Qualcomm's libraries, all of one SDK release");
    }
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  ~SharedLibrary() { dlclose(handle_); }

  // Returns a function of the library, or null when it has none of that name.
  template <typename Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  template <typename Function>
  Function* get(const char* name) const {
    if (auto* function = find<Function>(name)) return function;
    throw Failure(path_ + " has no function " + name +
                  "; it is of another SDK release than these sources are for");
  }

  const std::string& path() const { return path_; }

 private:
  static std::string last_words() {
    const char* words = dlerror();
    return words == nullptr ? "no reason was given" : words;
  }

  std::string path_;
  void* handle_;
};

}  // namespace snapbake
