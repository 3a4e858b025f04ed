// Training data: a file as tokens, and the windows of it that a batch is made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace llama {

using Token = std::int64_t;

// The tokens of a file: decimal numbers between white space if its name ends in ".ids", else its bytes.
std::vector<Token> read_tokens(const std::filesystem::path& file);

// Batches that are a function of seed, step and row alone: the same for any mesh and after any restart.
class TokenWindows {
 public:
  // Windows of `length` inputs and, one to the right, as many targets.
  TokenWindows(std::vector<Token> tokens, std::int64_t length, std::uint64_t seed);

  // length + 1 tokens.
  std::span<const Token> window(std::int64_t step, std::int64_t row) const;
  std::int64_t length() const { return length_; }
  Token largest_token() const;

 private:
  std::vector<Token> tokens_;
  std::int64_t length_;
  std::uint64_t seed_;
};

}  // namespace llama
