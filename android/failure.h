// The one kind of error of this folder: a sentence that says what was found, where, and what to do.
#pragma once

#include <stdexcept>

namespace snapbake {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace snapbake
