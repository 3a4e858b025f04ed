// Text in memory that other ranks may read while it is written: half of one text and half of another, then.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace meshtorch::internal {

// Writes what fits.
template <std::size_t size>
void write_shared_text(char (&room)[size], const std::string& text) {
  constexpr std::string_view kCut = "…";
  const std::string fitting = text.size() < size ? text : text.substr(0, size - 1 - kCut.size()).append(kCut);
  for (std::size_t i = 0; i <= fitting.size(); ++i)
    std::atomic_ref<char>(room[i]).store(fitting.c_str()[i], std::memory_order_relaxed);
}

template <std::size_t size>
std::string read_shared_text(const char (&room)[size]) {
  std::string text;
  for (const char& place : room) {
    const char c = std::atomic_ref<char>(const_cast<char&>(place)).load(std::memory_order_relaxed);
    if (c == '\0') break;
    text.push_back(c);
  }
  return text;
}

}  // namespace meshtorch::internal
