// Must not compile: MALFORMED_RULE selects a mistake, and the compiler's message must name it.
#include "meshtorch/rule_notation.h"

namespace {

#if MALFORMED_RULE == 0  // the control: this one compiles
constexpr meshtorch::Rule kRule = "*m k, *k n -> m n";
#elif MALFORMED_RULE == 1  // a_rule_needs_an_arrow
constexpr meshtorch::Rule kRule = "*m k, *k n";
#elif MALFORMED_RULE == 2  // a_result_name_comes_from_no_operand
constexpr meshtorch::Rule kRule = "*m k, *k n -> m q";
#elif MALFORMED_RULE == 3  // a_name_is_twice_in_one_tensor
constexpr meshtorch::Rule kRule = "m m -> m";
#elif MALFORMED_RULE == 4  // a_compound_needs_a_closing_parenthesis
constexpr meshtorch::Rule kRule = "(b s -> b s";
#elif MALFORMED_RULE == 5  // an_ellipsis_stands_alone_in_its_tensor
constexpr meshtorch::Rule kRule = "a ... -> ...";
#elif MALFORMED_RULE == 6  // a_name_is_in_some_results_only
constexpr meshtorch::Rule kRule = "a b -> a b, a";
#elif MALFORMED_RULE == 7  // an_additive_term_uses_result_names_only
constexpr meshtorch::Rule kRule = "+m k -> m";
#elif MALFORMED_RULE == 8  // unexpected_character
constexpr meshtorch::Rule kRule = "M k -> k";
#endif

}  // namespace

int main() { return kRule.text().empty() ? 1 : 0; }
