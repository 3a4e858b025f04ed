// The run-time side of the rule notation: messages, canonical text, rules made at run time.
#include "meshtorch/rule_notation.h"

#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

namespace meshtorch {
using namespace detail;
namespace {

struct Explanation {
  std::string_view wrong;
  std::string_view advice;
};

Explanation explain(RuleMistake mistake) {
  using enum RuleMistake;
  switch (mistake) {
    case a_rule_needs_an_arrow:
      return {"a rule needs '->'", "write operands -> results"};
    case a_rule_has_only_one_arrow:
      return {"a rule has only one '->'", "separate the results by ','"};
    case unexpected_character:
      return {"unexpected character", "names are lower-case letters and digits, a letter first"};
    case a_mark_stands_before_its_tensor:
      return {"a mark, '+' or '*', stands once, before its tensor", "write *m k, not m *k"};
    case a_result_is_no_linear_factor:
      return {"a result is no linear factor", "leave the '*' out"};
    case nothing_follows_the_end_of_a_tensor:
      return {"'?' or '[]' ends a tensor", "begin the next tensor with ','"};
    case a_list_is_not_optional_too:
      return {"'?' and '[]' on one tensor", "leave the '?' out: a list may be empty"};
    case a_compound_needs_a_closing_parenthesis:
      return {"'(' without ')'", "close it: (b s)"};
    case a_compound_holds_only_names:
      return {"only names may stand inside ( )", "write (b s) or (b! s)"};
    case a_compound_holds_two_or_more_names:
      return {"( ) holds two or more names", "write a single name without ( )"};
    case a_compound_holds_at_most_four_names:
      return {"( ) holds at most four names", "join names that always stand together"};
    case only_a_name_can_be_whole:
      return {"'!' does not follow a name", "write s! or a..!; `_` and `1` are never split anyway"};
    case a_rule_has_at_most_sixteen_tensors:
      return {"a rule has at most sixteen tensors", "use a list, t[]"};
    case a_tensor_has_at_most_ten_dims:
      return {"a tensor has at most ten dim patterns", "use a run, a.."};
    case a_name_is_twice_in_one_tensor:
      return {"a name is twice in one tensor", "give the dims two names"};
    case a_name_is_both_a_run_and_a_dim:
      return {"a name is a run in one place and one dim in another", "give them two names"};
    case a_result_name_comes_from_no_operand:
      return {"a result name comes from no operand", "name it in an operand, or write `_` or `1`"};
    case a_name_is_in_some_results_only:
      return {"a name is in some results only",
              "add it to the others, mark those '+' (sums over it), or mark the name '!'"};
    case an_additive_term_uses_result_names_only:
      return {"a '+' term uses a name that is in no result", "drop the '+', or mark the name '!'"};
    case results_of_paired_lists_are_lists:
      return {"with a list operand, results are all lists or all plain", "make them all lists"};
    case an_ellipsis_stands_alone_in_its_tensor:
      return {"'...' stands alone in its tensor", "use a named run, a.."};
    case an_ellipsis_operand_needs_an_ellipsis_result:
      return {"'...' in an operand needs '...' in the result, or a '+'", "use a named run, a.."};
    case an_ellipsis_result_needs_an_ellipsis_operand:
      return {"'...' in a result needs '...' in an operand", "use a named run, a.."};
    case an_ellipsis_operand_needs_a_result_of_known_rank:
      return {"'...' in an operand needs a result of known rank", "name the dims of that operand"};
    case a_tensor_has_one_open_run:
      return {"a tensor has at most one of `_..` and `1..`", "name one of the runs"};
    case an_open_run_comes_last_in_a_result:
      return {"`_..` or `1..` comes last in a result", "name the run, or write its dims singly"};
  }
  return {"unknown mistake", "report it"};
}

std::string dim_text(const DimPattern& dim, const RulePatterns& rule) {
  switch (dim.kind) {
    case DimKind::ellipsis:
      return "...";
    case DimKind::one:
      return "1";
    case DimKind::one_run:
      return "1..";
    case DimKind::unmatched:
      return "_";
    case DimKind::unmatched_run:
      return "_..";
    case DimKind::named:
    case DimKind::run:
      break;
  }
  std::string text;
  for (int k = 0; k < dim.name_count; ++k) {
    text.append(k > 0 ? " " : "").append(dim.names[k]);
    if (dim.kind == DimKind::run) text += "..";
    if (rule.is_whole(dim.names[k])) text += "!";
  }
  return dim.name_count > 1 ? "(" + text + ")" : text;
}

}  // namespace

void detail::throw_malformed_rule(RuleMistake mistake, std::string_view rule, std::size_t position) {
  const Explanation explanation = explain(mistake);
  std::string message = "meshtorch: malformed rule: " + std::string(explanation.wrong);
  std::string shown(rule);
  // What would end or bend the text; one for one, so that the mark below stands right.
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ') c = '#';
  }
  message.append("\n  ").append(shown);
  message.append("\n  ").append(std::string(position, ' ')).append("^");
  message.append("\n  do: ").append(explanation.advice);
  throw std::invalid_argument(message);
}

Rule Rule::parse(std::string text) {
  RuleParser(text).parse();
  static std::mutex guard;
  // Never destroyed: rules may be used while the program ends.
  static auto& pool = *new std::set<std::string>;
  const std::scoped_lock lock(guard);
  return {Checked{}, *pool.insert(std::move(text)).first};
}

std::string detail::to_string(const TensorPattern& tensor, const RulePatterns& rule) {
  std::string text;
  if (tensor.mark != ' ') text += tensor.mark;
  for (int d = 0; d < tensor.dim_count; ++d) {
    text.append(d > 0 ? " " : "").append(dim_text(tensor.dims[d], rule));
  }
  if (tensor.optional) text += "?";
  if (tensor.list) text += "[]";
  return text;
}

std::string Rule::to_string() const {
  const RulePatterns rule = patterns();
  std::string text;
  for (int t = 0; t < rule.tensor_count; ++t) {
    if (t == rule.operand_count) {
      text += " ->";
    } else if (t > 0) {
      text += ",";
    }
    const std::string tensor = detail::to_string(rule.tensors[t], rule);
    if (t > 0 && !tensor.empty()) text += " ";
    text += tensor;
  }
  return text;
}

}  // namespace meshtorch
