// A file as tokens, and the windows of it.
#include "schedule.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

namespace llama {
namespace {

// A good hash of one number (the finaliser of splitmix64).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::vector<Token> parse_ids(const std::string& text, const std::filesystem::path& file) {
  std::vector<Token> tokens;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    Token token = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || end != word.data() + word.size() || token < 0) {
      throw std::invalid_argument(
          "" + file.string() + " holds \"" + word + "\", which is not a token number.\n  token " +
          std::to_string(tokens.size()) +
          " of the file\n  do: write tokens as numbers from 0, separated by spaces or "
          "lines; text goes in a file whose name does not end in .ids");
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::vector<Token> tokens_of_bytes(const std::string& text) {
  std::vector<Token> tokens(text.size());
  std::transform(text.begin(), text.end(), tokens.begin(),
                 [](char c) { return static_cast<Token>(static_cast<unsigned char>(c)); });
  return tokens;
}

}  // namespace

std::vector<Token> read_tokens(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw std::invalid_argument("cannot open the training data " + file.string() +
                                ".\n  option --data\n  do: name a readable file");
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return file.extension() == ".ids" ? parse_ids(text, file) : tokens_of_bytes(text);
}

TokenWindows::TokenWindows(std::vector<Token> tokens, std::int64_t length, std::uint64_t seed)
    : tokens_(std::move(tokens)), length_(length), seed_(seed) {
  if (length < 1 || static_cast<std::int64_t>(tokens_.size()) < length + 1) {
    throw std::invalid_argument("the training data has " + std::to_string(tokens_.size()) +
                                " tokens, and a window needs " + std::to_string(length + 1) +
                                ".\n  options --data and --sequence-length\n  do: use a longer text or "
                                "shorter sequences of at least 1");
  }
}

std::span<const Token> TokenWindows::window(std::int64_t step, std::int64_t row) const {
  const std::uint64_t choices = tokens_.size() - static_cast<std::uint64_t>(length_);
  const std::uint64_t at =
      mix(mix(mix(seed_) ^ static_cast<std::uint64_t>(step)) ^ static_cast<std::uint64_t>(row)) % choices;
  return {tokens_.data() + at, static_cast<std::size_t>(length_ + 1)};
}

Token TokenWindows::largest_token() const { return *std::max_element(tokens_.begin(), tokens_.end()); }

}  // namespace llama
