// What a collective is called with that its arguments do not tell: which tensor's data it moves, and from
// which line of the program. Ranks compare both, so that equal calls for different ends are told apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "meshtorch/api.h"
#include "meshtorch/call_site.h"

namespace meshtorch::internal {

inline std::uint64_t combined(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6))) * 0xBF58476D1CE4E5B9ULL;
  return x ^ (x >> 31);
}

// What a tensor has whose origin other ranks may know by another number.
inline constexpr std::uint64_t kUnknownOrigin = ~std::uint64_t{0};

// What a tensor was made of, and by what. Ranks that run one program have equal ones, or do not know it.
struct TensorOrigin {
  std::uint64_t id = 0;         // 0: nothing is noted of it, on any rank
  const char* maker = nullptr;  // an operator, in words that live for ever
};

// While it lives, the collectives of this thread move the data of that tensor.
class MovedTensor {
 public:
  explicit MovedTensor(const TensorOrigin& origin) : outer_(std::exchange(current_, &origin)) {}
  ~MovedTensor() { current_ = outer_; }
  MovedTensor(const MovedTensor&) = delete;
  MovedTensor& operator=(const MovedTensor&) = delete;

  // Null if there is none.
  static const TensorOrigin* current() { return current_; }

 private:
  const TensorOrigin* outer_;
  inline static thread_local const TensorOrigin* current_ = nullptr;
};

// A line of the program.
struct SourceLine {
  std::string_view file;
  std::uint32_t line = 0;

  std::string_view file_name() const { return file.substr(file.rfind('/') + 1); }
  std::string text() const { return std::string(file_name()) + ":" + std::to_string(line); }
};

// While it lives, the collectives of this thread are called from that line. The outermost counts: a public
// function may call others.
class MESHTORCH_FOR_PYTHON CalledFrom {
 public:
  explicit CalledFrom(const SourceLine& line);
  // Lines of the library are none of the program.
  explicit CalledFrom(const CallSite& at);
  ~CalledFrom();
  CalledFrom(const CalledFrom&) = delete;
  CalledFrom& operator=(const CalledFrom&) = delete;

  // Null if it is not known.
  static const SourceLine* current();

 private:
  const SourceLine line_;
  const bool is_outermost_;
};

}  // namespace meshtorch::internal
