// A hash of what the ranks of a group must agree on in one collective.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace meshtorch::internal {

// 128 bits: ranks that differ look alike once in 10^38 calls. The order of what is added counts.
class CallHash {
 public:
  void add(std::uint64_t value) {
    first_ = mixed(first_ ^ value);
    second_ = mixed(std::rotl(second_, 23) + value * 0xC2B2AE3D27D4EB4FULL);
  }
  void add(std::string_view text) {
    add(text.size());
    for (; !text.empty(); text.remove_prefix(text.size() < 8 ? text.size() : 8)) {
      std::uint64_t part = 0;
      std::memcpy(&part, text.data(), text.size() < 8 ? text.size() : 8);
      add(part);
    }
  }
  void add(const CallHash& other) {
    add(other.first_);
    add(other.second_);
  }
  // Enough to tell the calls of one run apart.
  std::uint64_t short_form() const { return first_; }
  friend bool operator==(const CallHash&, const CallHash&) = default;

 private:
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15ULL;
    return x ^ (x >> 29);
  }

  std::uint64_t first_ = 0x243F6A8885A308D3ULL;
  std::uint64_t second_ = 0x13198A2E03707344ULL;
};

}  // namespace meshtorch::internal
