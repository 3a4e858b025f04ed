// The parser of the notation of rules, at compile time and at run time. No torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "meshtorch/api.h"

namespace meshtorch::detail {

enum class DimKind : std::uint8_t {
  named,          // `m`, or `(b s)`: several names, outer first
  run,            // `a..`
  ellipsis,       // `...`
  one,            // `1`
  one_run,        // `1..`
  unmatched,      // `_`
  unmatched_run,  // `_..`
};

struct DimPattern {
  static constexpr int kMaxNames = 4;

  DimKind kind = DimKind::named;
  std::size_t position = 0;  // in the rule's text
  int name_count = 0;
  std::array<std::string_view, kMaxNames> names{};
  std::array<bool, kMaxNames> whole{};  // written with `!` here
};

struct TensorPattern {
  static constexpr int kMaxDims = 10;

  char mark = ' ';        // '+' additive term, '*' linear factor, ' ' neither
  bool optional = false;  // `t?`
  bool list = false;      // `t[]`
  std::size_t position = 0;
  int dim_count = 0;
  std::array<DimPattern, kMaxDims> dims{};

  // The dim that a name is in, or -1.
  constexpr int find(std::string_view name) const {
    for (int d = 0; d < dim_count; ++d) {
      for (int k = 0; k < dims[d].name_count; ++k) {
        if (dims[d].names[k] == name) return d;
      }
    }
    return -1;
  }
  constexpr bool holds(std::string_view name) const { return find(name) >= 0; }
  constexpr bool is_ellipsis() const { return dim_count == 1 && dims[0].kind == DimKind::ellipsis; }
  // Ends in `_..` or `1..`: a result whose rank only the local result tells.
  constexpr bool is_open() const {
    return dim_count > 0 && (dims[dim_count - 1].kind == DimKind::one_run ||
                             dims[dim_count - 1].kind == DimKind::unmatched_run);
  }
};

// A rule as data: the operands' patterns, then the results'. Names point into the rule's text.
struct RulePatterns {
  static constexpr int kMaxTensors = 16;

  int operand_count = 0;
  int tensor_count = 0;
  std::array<TensorPattern, kMaxTensors> tensors{};

  // Marked `!` anywhere in the rule.
  constexpr bool is_whole(std::string_view name) const {
    for (int t = 0; t < tensor_count; ++t) {
      for (int d = 0; d < tensors[t].dim_count; ++d) {
        const DimPattern& dim = tensors[t].dims[d];
        for (int k = 0; k < dim.name_count; ++k) {
          if (dim.whole[k] && dim.names[k] == name) return true;
        }
      }
    }
    return false;
  }
};

// What can be wrong with a rule. The names are what a compiler prints.
enum class RuleMistake : std::uint8_t {
  a_rule_needs_an_arrow,
  a_rule_has_only_one_arrow,
  unexpected_character,
  a_mark_stands_before_its_tensor,
  a_result_is_no_linear_factor,
  nothing_follows_the_end_of_a_tensor,
  a_list_is_not_optional_too,
  a_compound_needs_a_closing_parenthesis,
  a_compound_holds_only_names,
  a_compound_holds_two_or_more_names,
  a_compound_holds_at_most_four_names,
  only_a_name_can_be_whole,
  a_rule_has_at_most_sixteen_tensors,
  a_tensor_has_at_most_ten_dims,
  a_name_is_twice_in_one_tensor,
  a_name_is_both_a_run_and_a_dim,
  a_result_name_comes_from_no_operand,
  a_name_is_in_some_results_only,
  an_additive_term_uses_result_names_only,
  an_ellipsis_stands_alone_in_its_tensor,
  an_ellipsis_operand_needs_an_ellipsis_result,
  an_ellipsis_result_needs_an_ellipsis_operand,
  an_ellipsis_operand_needs_a_result_of_known_rank,
  a_tensor_has_one_open_run,
  an_open_run_comes_last_in_a_result,
  results_of_paired_lists_are_lists,
};

// Throws std::invalid_argument: the mistake, the rule with a caret below `position`, what to do.
[[noreturn]] MESHTORCH_API void throw_malformed_rule(RuleMistake mistake, std::string_view rule,
                                                     std::size_t position);

// Reads and checks one rule; the same code at compile time and at run time.
class RuleParser {
 public:
  constexpr explicit RuleParser(std::string_view text) : text_(text) {}

  constexpr RulePatterns parse() {
    read();
    check_ellipses();
    check_open_runs();
    check_lists();
    check_names();
    return rule_;
  }

 private:
  using enum RuleMistake;

  // Not constexpr: a mistake met at compile time is an error that names the mistake.
  template <RuleMistake mistake>
  [[noreturn]] void fail(std::size_t position) const {
    throw_malformed_rule(mistake, text_, position);
  }

  static constexpr bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
  constexpr bool more() const { return at_ < text_.size(); }
  constexpr TensorPattern& tensor() { return rule_.tensors[rule_.tensor_count - 1]; }

  constexpr bool take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  constexpr void read() {
    begin_tensor();
    while (more()) {
      const std::size_t start = at_;
      if (take(" ")) continue;
      if (take("->")) {
        if (rule_.operand_count > 0) fail<a_rule_has_only_one_arrow>(start);
        rule_.operand_count = rule_.tensor_count;
        begin_tensor();
      } else if (take(",")) {
        begin_tensor();
      } else if (take("+") || take("*")) {
        read_mark(start);
      } else if (take("?") || take("[]")) {
        read_suffix(start);
      } else {
        read_dim(start);
      }
    }
    if (rule_.operand_count == 0) fail<a_rule_needs_an_arrow>(at_);
  }

  constexpr void begin_tensor() {
    if (rule_.tensor_count == RulePatterns::kMaxTensors) {
      fail<a_rule_has_at_most_sixteen_tensors>(at_);
    }
    ++rule_.tensor_count;
    tensor().position = at_;
  }

  constexpr void read_mark(std::size_t start) {
    TensorPattern& t = tensor();
    if (t.dim_count > 0 || t.mark != ' ' || t.optional || t.list) {
      fail<a_mark_stands_before_its_tensor>(start);
    }
    t.mark = text_[start];
    if (rule_.operand_count > 0 && t.mark == '*') fail<a_result_is_no_linear_factor>(start);
  }

  constexpr void read_suffix(std::size_t start) {
    TensorPattern& t = tensor();
    const bool optional = text_[start] == '?';
    if (optional ? t.list : t.optional) fail<a_list_is_not_optional_too>(start);
    if (optional ? t.optional : t.list) fail<nothing_follows_the_end_of_a_tensor>(start);
    (optional ? t.optional : t.list) = true;
  }

  constexpr void read_dim(std::size_t start) {
    TensorPattern& t = tensor();
    if (t.optional || t.list) fail<nothing_follows_the_end_of_a_tensor>(start);
    if (t.dim_count == TensorPattern::kMaxDims) fail<a_tensor_has_at_most_ten_dims>(start);
    DimPattern& dim = t.dims[t.dim_count++];
    dim.position = start;
    if (take("...")) {
      dim.kind = DimKind::ellipsis;
    } else if (take("_")) {
      dim.kind = take("..") ? DimKind::unmatched_run : DimKind::unmatched;
    } else if (take("1")) {
      dim.kind = take("..") ? DimKind::one_run : DimKind::one;
    } else if (take("(")) {
      read_compound(dim, start);
    } else {
      read_name(dim);
      if (take("..")) dim.kind = DimKind::run;
      if (take("!")) dim.whole[0] = true;
    }
  }

  constexpr void read_compound(DimPattern& dim, std::size_t start) {
    while (!take(")")) {
      if (take(" ")) continue;
      if (!more() || text_[at_] == ',' || text_[at_] == '-') {
        fail<a_compound_needs_a_closing_parenthesis>(start);
      }
      if (!is_letter(text_[at_])) fail<a_compound_holds_only_names>(at_);
      if (dim.name_count == DimPattern::kMaxNames) fail<a_compound_holds_at_most_four_names>(at_);
      read_name(dim);
      if (take("!")) dim.whole[dim.name_count - 1] = true;
    }
    if (dim.name_count < 2) fail<a_compound_holds_two_or_more_names>(start);
  }

  constexpr void read_name(DimPattern& dim) {
    const std::size_t begin = at_;
    if (text_[at_] == '!') fail<only_a_name_can_be_whole>(at_);
    if (!is_letter(text_[at_])) fail<unexpected_character>(at_);
    while (more() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    dim.names[dim.name_count++] = text_.substr(begin, at_ - begin);
  }

  constexpr void check_ellipses() const {
    const TensorPattern& first_result = rule_.tensors[rule_.operand_count];
    bool in_operand = false;
    for (int t = 0; t < rule_.tensor_count; ++t) {
      const TensorPattern& tensor = rule_.tensors[t];
      for (int d = 0; d < tensor.dim_count; ++d) {
        if (tensor.dims[d].kind == DimKind::ellipsis && tensor.dim_count > 1) {
          fail<an_ellipsis_stands_alone_in_its_tensor>(tensor.dims[d].position);
        }
      }
      const bool is_result = t >= rule_.operand_count;
      if (is_result && tensor.mark != '+' && tensor.is_ellipsis() != first_result.is_ellipsis()) {
        fail<a_name_is_in_some_results_only>(tensor.position);
      }
      if (is_result || !tensor.is_ellipsis()) continue;
      in_operand = true;
      if (tensor.mark != '+' && !first_result.is_ellipsis()) {
        fail<an_ellipsis_operand_needs_an_ellipsis_result>(tensor.dims[0].position);
      }
      if (first_result.is_open()) {
        fail<an_ellipsis_operand_needs_a_result_of_known_rank>(tensor.dims[0].position);
      }
    }
    if (first_result.is_ellipsis() && !in_operand) {
      fail<an_ellipsis_result_needs_an_ellipsis_operand>(first_result.dims[0].position);
    }
  }

  constexpr void check_open_runs() const {
    for (int t = 0; t < rule_.tensor_count; ++t) {
      const TensorPattern& tensor = rule_.tensors[t];
      int open_runs = 0;
      for (int d = 0; d < tensor.dim_count; ++d) {
        const DimKind kind = tensor.dims[d].kind;
        if (kind != DimKind::one_run && kind != DimKind::unmatched_run) continue;
        if (++open_runs > 1) fail<a_tensor_has_one_open_run>(tensor.dims[d].position);
        if (t >= rule_.operand_count && d + 1 < tensor.dim_count) {
          fail<an_open_run_comes_last_in_a_result>(tensor.dims[d].position);
        }
      }
    }
  }

  constexpr void check_lists() const {
    bool list_operand = false;
    for (int t = 0; t < rule_.operand_count; ++t) list_operand |= rule_.tensors[t].list;
    const bool list_result = rule_.tensors[rule_.operand_count].list;
    for (int t = rule_.operand_count; t < rule_.tensor_count; ++t) {
      if (list_operand && rule_.tensors[t].list != list_result) {
        fail<results_of_paired_lists_are_lists>(rule_.tensors[t].position);
      }
    }
  }

  constexpr void check_names() const {
    for (int t = 0; t < rule_.tensor_count; ++t) {
      for (int d = 0; d < rule_.tensors[t].dim_count; ++d) {
        const DimPattern& dim = rule_.tensors[t].dims[d];
        for (int k = 0; k < dim.name_count; ++k) check_name(t, dim, dim.names[k]);
      }
    }
  }

  constexpr void check_name(int t, const DimPattern& dim, std::string_view name) const {
    const auto position = static_cast<std::size_t>(name.data() - text_.data());
    bool in_operand = false;
    bool in_every_result = true;
    int times = 0;
    for (int u = 0; u < rule_.tensor_count; ++u) {
      const TensorPattern& other = rule_.tensors[u];
      if (u < rule_.operand_count) in_operand |= other.holds(name);
      if (u >= rule_.operand_count && other.mark != '+') in_every_result &= other.holds(name);
      for (int e = 0; e < other.dim_count; ++e) {
        for (int j = 0; j < other.dims[e].name_count; ++j) {
          if (other.dims[e].names[j] != name) continue;
          if (u == t) ++times;
          if ((other.dims[e].kind == DimKind::run) != (dim.kind == DimKind::run)) {
            fail<a_name_is_both_a_run_and_a_dim>(position);
          }
        }
      }
    }
    if (times > 1) fail<a_name_is_twice_in_one_tensor>(position);
    if (!in_operand) fail<a_result_name_comes_from_no_operand>(position);
    if (rule_.is_whole(name)) return;
    const bool in_operands = t < rule_.operand_count;
    if (!in_operands && !in_every_result) fail<a_name_is_in_some_results_only>(position);
    if (in_operands && rule_.tensors[t].mark == '+' && !in_every_result) {
      fail<an_additive_term_uses_result_names_only>(position);
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  RulePatterns rule_;
};

// One tensor of a rule in canonical text.
MESHTORCH_API std::string to_string(const TensorPattern& tensor, const RulePatterns& rule);

}  // namespace meshtorch::detail
