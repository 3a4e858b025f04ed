// The notation of sharding rules, "*m k, *k n -> m n": what may be split, as one line. No torch.
#pragma once

#include <string>
#include <string_view>

#include "meshtorch/api.h"
#include "meshtorch/detail/rule_parser.h"

namespace meshtorch {

// A checked rule. It is no more than a view of its text, so that a table of rules costs nothing.
class MESHTORCH_API Rule {
 public:
  // From a string literal, which needs no cast. A mistake is a compile error.
  consteval Rule(const char* text) : text_(text) { detail::RuleParser(text_).parse(); }

  // From a text made at run time, which is kept for the life of the program. A mistake is
  // std::invalid_argument.
  static Rule parse(std::string text);

  std::string_view text() const { return text_; }
  detail::RulePatterns patterns() const { return detail::RuleParser(text_).parse(); }

  // The canonical text: single spaces, `!` wherever a whole name stands.
  std::string to_string() const;

 private:
  struct Checked {};
  constexpr Rule(Checked, std::string_view text) : text_(text) {}

  std::string_view text_;
};

}  // namespace meshtorch
