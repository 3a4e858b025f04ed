// Texts that are nearly right: a kept corpus, changed in places that are drawn from a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

namespace meshtorch::testing {

class Mutations {
 public:
  Mutations(std::uint64_t seed, std::vector<std::string> corpus) : draws_(seed), corpus_(std::move(corpus)) {}

  std::string next() {
    std::string text = corpus_[below(corpus_.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : draws_() % limit; }

  void change(std::string& text) {
    static const std::array<std::string, 22> kWords{"0",
                                                    "-1",
                                                    "1e400",
                                                    "18446744073709551616",
                                                    "9223372036854775807",
                                                    "null",
                                                    "true",
                                                    "\"\"",
                                                    "{}",
                                                    "[]",
                                                    "[[",
                                                    "}}",
                                                    "\"",
                                                    "\\u0000",
                                                    "\xff",
                                                    ",",
                                                    ":",
                                                    "->",
                                                    "..",
                                                    "!",
                                                    "?",
                                                    "*"};
    const std::size_t at = below(text.size() + 1);
    const std::size_t run = std::min<std::size_t>(below(1 + below(16)), text.size() - at);
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        return;
      case 1:
        text.erase(at, run);
        return;
      case 2:
        text.insert(at, text.substr(at, run));
        return;
      case 3:
        text.replace(at, run, kWords[below(kWords.size())]);
        return;
      case 4:
        text.resize(at);
        return;
      default:
        const std::string& other = corpus_[below(corpus_.size())];
        text.replace(at, run, other.substr(below(other.size()), below(24)));
    }
  }

  std::mt19937_64 draws_;
  std::vector<std::string> corpus_;
};

// Reads each changed text: it is understood, or refused with words that are ours. MESHTORCH_MUTATIONS gives
// another number of texts, MESHTORCH_MUTATION_SEED other texts.
template <class Read>
void expect_read_or_refused(const std::vector<std::string>& corpus, const Read& read) {
  for (const std::string& text : corpus) ASSERT_NO_THROW(read(text)) << text;
  const char* count = std::getenv("MESHTORCH_MUTATIONS");
  const char* seed = std::getenv("MESHTORCH_MUTATION_SEED");
  Mutations texts(seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10), corpus);
  for (std::uint64_t i = count == nullptr ? 4000 : std::strtoull(count, nullptr, 10); i > 0; --i) {
    const std::string text = texts.next();
    try {
      read(text);
    } catch (const std::exception& error) {
      const std::string words = error.what();
      ASSERT_NE(words.find("meshtorch"), std::string::npos) << words << "\n  of: " << text;
    }
  }
}

}  // namespace meshtorch::testing
