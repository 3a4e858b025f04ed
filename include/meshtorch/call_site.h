// The line of a program that calls a function: std::source_location, as far as clang 14 has it.
#pragma once

#include <cstdint>

namespace meshtorch {

// A parameter `CallSite site = CallSite::current()` takes the caller's line; nobody has to give it.
class CallSite {
 public:
  static constexpr CallSite current(const char* file = __builtin_FILE(),
                                    std::uint32_t line = __builtin_LINE()) {
    return CallSite(file, line);
  }
  constexpr const char* file_name() const { return file_; }
  constexpr std::uint32_t line() const { return line_; }

 private:
  constexpr CallSite(const char* file, std::uint32_t line) : file_(file), line_(line) {}
  const char* file_;
  std::uint32_t line_;
};

}  // namespace meshtorch
