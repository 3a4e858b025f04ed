// Rules of operators that take parts of a tensor, slices and diagonals among them, and of their gradients.
#include "rules/ops/by_dims.h"

namespace meshtorch::internal {
namespace {

// ---- slices ----

RuleUse slice(const OpArguments& call) {
  const Shape shape = call.shape("self");
  const auto at = wrapped(call.integer("dim"), rank_of(shape));
  if (!at) return {kWhole};
  const bool from_start = !call.has("start") || call.integer("start") == 0;
  const bool to_end = !call.has("end") || call.integer("end") >= shape[static_cast<std::size_t>(*at)];
  if (from_start && to_end && call.integer("step") == 1) return {"*... -> ..."};
  return {"*a.. s! b.. -> a.. _ b..", {.lengths = {}, .positions = {{"s", *at}}, .sizes = {}}};
}

// The gradient of a slice or of a select: zeros in a tensor of `input_sizes`, and one part filled.
RuleUse into_zeros(Rule rule, std::int64_t dim, std::int64_t rank) {
  const auto at = wrapped(dim, rank);
  if (!at) return {kWhole};
  return {rule,
          {.lengths = {{"a", *at}}, .positions = {}, .sizes = {}},
          ReduceOp::sum,
          {{LocalChange::Kind::result_sizes, "input_sizes"}}};
}

// The kernels broadcast a gradient of other sizes; no rule says so.
bool has_sizes(const Shape& gradient, const Shape& whole, const std::vector<std::int64_t>& but_for) {
  const auto is_left_out = named_dims(but_for, rank_of(whole));
  if (!is_left_out) return false;
  Shape kept;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (!(*is_left_out)[d]) kept.push_back(whole[d]);
  }
  return gradient == kept;
}

RuleUse slice_backward(const OpArguments& call) {
  Shape gradient = call.shape("grad_output");
  const auto at = wrapped(call.integer("dim"), rank_of(gradient));
  if (!at) return {kWhole};
  gradient.erase(gradient.begin() + *at);
  if (!has_sizes(gradient, call.integers("input_sizes"), {*at})) return {kWhole};
  return into_zeros("*a.. _ b.. -> a.. _ b..", call.integer("dim"), rank_of(call.integers("input_sizes")));
}

RuleUse select_backward(const OpArguments& call) {
  if (!has_sizes(call.shape("grad_output"), call.integers("input_sizes"), {call.integer("dim")}))
    return {kWhole};
  return into_zeros("*a.. b.. -> a.. _ b..", call.integer("dim"), rank_of(call.integers("input_sizes")));
}

RuleUse unfold(const OpArguments& call) {
  const auto at = wrapped(call.integer("dimension"), rank_of(call.shape("self")));
  if (!at) return {kWhole};
  return {"*a.. s! b.. -> a.. _ b.. _", {.lengths = {}, .positions = {{"s", *at}}, .sizes = {}}};
}

RuleUse unfold_backward(const OpArguments& call) {
  return into_zeros("*a.. _ b.. w! -> a.. _ b..", call.integer("dim"), rank_of(call.integers("input_sizes")));
}

// ---- diagonals ----

// The tensor has `rank` dims, of which dim1 and dim2 hold the diagonal; its place is the last dim
// of the other tensor.
RuleUse diagonal_of(std::int64_t rank, std::int64_t dim1, std::int64_t dim2, bool is_operand) {
  const auto a = wrapped(dim1, rank);
  const auto b = wrapped(dim2, rank);
  if (!a || !b || *a == *b || !fits_a_rule(rank)) return {kWhole};
  std::string tensor, diagonal;
  for (std::int64_t d = 0; d < rank; ++d) {
    const bool is_kept = d != *a && d != *b;
    tensor += is_kept ? " " + dim_name(static_cast<std::size_t>(d)) : " _";
    if (is_kept) diagonal += " " + dim_name(static_cast<std::size_t>(d));
  }
  diagonal += " _";
  return {Rule::parse(is_operand ? "*" + tensor + " ->" + diagonal : "*" + diagonal + " ->" + tensor)};
}

RuleUse diagonal(const OpArguments& call) {
  return diagonal_of(rank_of(call.shape("self")), call.integer("dim1"), call.integer("dim2"), true);
}

RuleUse diag_embed(const OpArguments& call) {
  return diagonal_of(rank_of(call.shape("self")) + 1, call.integer("dim1"), call.integer("dim2"), false);
}

// `src` replaces the diagonal; additive in both.
RuleUse diagonal_scatter(const OpArguments& call) {
  const RuleUse cut = diagonal(call);
  const std::string text(cut.rule.text());
  const std::size_t arrow = text.find(" ->");
  if (text == kWhole.text() || call.shape("src").size() + 1 != call.shape("self").size()) {
    return {"_.., _.. -> _.."};
  }
  const std::string tensor = text.substr(1, arrow - 1);
  return {Rule::parse("+" + tensor + ", +" + text.substr(arrow + 3) + " ->" + tensor)};
}

RuleUse diagonal_backward(const OpArguments& call) {
  Shape gradient = call.shape("grad_output");
  if (!gradient.empty()) gradient.pop_back();
  if (!has_sizes(gradient, call.integers("input_sizes"), {call.integer("dim1"), call.integer("dim2")}))
    return {kWhole};
  RuleUse use =
      diagonal_of(rank_of(call.integers("input_sizes")), call.integer("dim1"), call.integer("dim2"), false);
  use.changes = {{LocalChange::Kind::result_sizes, "input_sizes"}};
  return use;
}

}  // namespace

void add_part_rules(RuleTable& ops) {
  for (const char* op : {"select.int", "select_copy.int"}) {
    ops.add(op, "*a.. s! b.. -> a.. b..").at("s", "dim").keeps(keeps_any());
  }
  for (const char* op : {"unbind.int", "unbind_copy.int"}) {
    ops.add(op, "*a.. s! b.. -> a.. b..[]").at("s", "dim").keeps(keeps_any());
  }
  for (const char* op : {"split.Tensor", "split_copy.Tensor", "split_with_sizes", "split_with_sizes_copy",
                         "unsafe_split.Tensor", "unsafe_split_with_sizes"}) {
    ops.add(op, "*a.. s! b.. -> a.. _ b..[]").at("s", "dim").keeps(keeps_any());
  }
  ops.add("narrow_copy", "*a.. s! b.. -> a.. _ b..").at("s", "dim").keeps(keeps_any());
  add_moves(ops, {"slice.Tensor", "slice_copy.Tensor"}, slice);
  add_moves(ops, {"slice_backward"}, slice_backward);
  add_moves(ops, {"select_backward"}, select_backward);
  add_moves(ops, {"unfold", "unfold_copy"}, unfold);
  ops.choose("unfold_backward", unfold_backward);
  add_moves(ops, {"diagonal", "diagonal_copy"}, diagonal);
  add_moves(ops, {"diag_embed"}, diag_embed);
  add_moves(ops, {"diagonal_backward"}, diagonal_backward);
  add_moves(ops, {"diagonal_scatter"}, diagonal_scatter);
  ops.add({"tril", "triu"}, "*a.. m! n! -> a.. m! n!", keeps_any());
  ops.add("trace", "*_ _ ->");
}

}  // namespace meshtorch::internal
