// Rules of operators that rearrange or repeat: all linear; the call says what may be split.
#include <algorithm>

#include "rules/ops/by_dims.h"
#include "rules/ops/reshape.h"

namespace meshtorch::internal {
namespace {

// A view of other items: the last dim may change its size.
RuleUse view_dtype(const OpArguments& call) {
  if (call.shape("self").empty()) return {"_.. -> _.."};
  return {"a.. _ -> a.. _"};
}

RuleUse expand(const OpArguments& call) {
  const Shape from = call.shape("self");
  const Shape to = call.integers("size");
  if (to.size() < from.size() || !fits_a_rule(rank_of(to))) return {kWhole};
  const std::size_t added = to.size() - from.size();
  Line line;
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (d < added) {
      line.add("", " _");
    } else if (const std::int64_t size = from[d - added]; size == to[d] || to[d] == -1) {
      line.keep(d);
    } else {
      line.add(size == 1 ? " 1" : " _", " _");
    }
  }
  return {line.rule(), {}, ReduceOp::sum, {{LocalChange::Kind::result_sizes, "size"}}};
}

// Dim d of the result is dim order[d] of the operand.
Rule permuted(const std::vector<std::size_t>& order) {
  Line line;
  for (std::size_t d = 0; d < order.size(); ++d) line.add(" " + dim_name(d), " " + dim_name(order[d]));
  return line.rule();
}

RuleUse permute(const OpArguments& call) {
  const std::int64_t rank = rank_of(call.shape("self"));
  std::vector<std::size_t> order;
  for (const std::int64_t dim : call.integers("dims")) {
    const auto at = wrapped(dim, rank);
    if (!at || std::count(order.begin(), order.end(), static_cast<std::size_t>(*at)) > 0) {
      return {kWhole};
    }
    order.push_back(static_cast<std::size_t>(*at));
  }
  if (rank_of(call.integers("dims")) != rank || !fits_a_rule(rank)) return {kWhole};
  return {permuted(order)};
}

Rule transposed(std::int64_t rank, std::int64_t dim0, std::int64_t dim1) {
  const auto a = wrapped(dim0, rank);
  const auto b = wrapped(dim1, rank);
  if (!a || !b || !fits_a_rule(rank)) return kWhole;
  std::vector<std::size_t> order;
  for (std::int64_t d = 0; d < rank; ++d) order.push_back(static_cast<std::size_t>(d));
  std::swap(order[static_cast<std::size_t>(*a)], order[static_cast<std::size_t>(*b)]);
  return permuted(order);
}

RuleUse transpose(const OpArguments& call) {
  return {transposed(rank_of(call.shape("self")), call.integer("dim0"), call.integer("dim1"))};
}

RuleUse t(const OpArguments& call) {
  const std::int64_t rank = rank_of(call.shape("self"));
  return {rank == 2 ? transposed(2, 0, 1) : Rule("*... -> ...")};
}

// A dim that must go may have size 1 on one rank only, so those that stay must be whole.
RuleUse squeezed(const Shape& shape, const std::optional<std::vector<bool>>& is_named) {
  if (!is_named || !fits_a_rule(rank_of(shape))) return {kWhole};
  Line line;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!(*is_named)[d]) {
      line.keep(d);
    } else if (shape[d] == 1) {
      line.add(" 1", "");
    } else {
      line.keep_whole(d);
    }
  }
  return {line.rule()};
}

RuleUse squeeze(const OpArguments& call) {
  const Shape shape = call.shape("self");
  return squeezed(shape, std::vector<bool>(shape.size(), true));
}

RuleUse squeeze_dim(const OpArguments& call) {
  const Shape shape = call.shape("self");
  if (shape.empty()) return {kWhole};
  return squeezed(shape, named_dims({call.integer("dim")}, rank_of(shape)));
}

RuleUse squeeze_dims(const OpArguments& call) {
  const Shape shape = call.shape("self");
  if (shape.empty()) return {kWhole};
  return squeezed(shape, named_dims(call.integers("dim"), rank_of(shape)));
}

RuleUse unsqueeze(const OpArguments& call) {
  const auto at = wrapped(call.integer("dim"), rank_of(call.shape("self")) + 1);
  if (!at) return {kWhole};
  return {"*a.. b.. -> a.. 1 b..", {.lengths = {{"a", *at}}, .positions = {}, .sizes = {}}};
}

RuleUse repeat(const OpArguments& call) {
  const Shape shape = call.shape("self");
  const std::vector<std::int64_t> repeats = call.integers("repeats");
  if (repeats.size() < shape.size() || !fits_a_rule(rank_of(repeats))) return {kWhole};
  const std::size_t added = repeats.size() - shape.size();
  Line line;
  for (std::size_t d = 0; d < repeats.size(); ++d) {
    if (d < added) {
      line.add("", " _");
    } else if (repeats[d] == 1) {
      line.keep(d);
    } else {
      line.add(" _", " _");
    }
  }
  return {line.rule()};
}

// The dims of the list are worked on as wholes.
RuleUse keep_whole(const Shape& shape, const std::vector<std::int64_t>& dims) {
  const auto is_whole = named_dims(dims, rank_of(shape));
  if (!is_whole || !fits_a_rule(rank_of(shape))) return {kWhole};
  Line line;
  for (std::size_t d = 0; d < shape.size(); ++d) (*is_whole)[d] ? line.keep_whole(d) : line.keep(d);
  return {line.rule()};
}

RuleUse flip(const OpArguments& call) { return keep_whole(call.shape("self"), call.integers("dims")); }

RuleUse roll(const OpArguments& call) {
  if (call.integers("dims").empty()) return {kWhole};  // rolls the elements in their order
  return keep_whole(call.shape("self"), call.integers("dims"));
}

RuleUse rot90(const OpArguments& call) {
  const Shape shape = call.shape("self");
  const auto is_turned = named_dims(call.integers("dims"), rank_of(shape));
  if (!is_turned || !fits_a_rule(rank_of(shape))) return {kWhole};
  Line line;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    (*is_turned)[d] ? line.add(" _", " _") : line.keep(d);
  }
  return {line.rule()};
}

void add_shapes(RuleTable& ops) {
  add_moves(ops, {"view", "_unsafe_view", "view_copy", "_reshape_copy"}, reshape_rule);
  ops.choose({"view.dtype", "view_copy.dtype"}, view_dtype);
  add_moves(ops, {"expand", "expand_copy"}, expand);
  add_moves(ops, {"permute", "permute_copy"}, permute);
  add_moves(ops, {"transpose.int", "transpose_copy.int"}, transpose);
  add_moves(ops, {"t", "t_copy"}, t);
  add_moves(ops, {"squeeze_copy"}, squeeze);
  add_moves(ops, {"squeeze_copy.dim"}, squeeze_dim);
  add_moves(ops, {"squeeze.dims", "squeeze_copy.dims"}, squeeze_dims);
  add_moves(ops, {"unsqueeze", "unsqueeze_copy"}, unsqueeze);
  ops.add({"view_as_real", "view_as_real_copy"}, "*a.. -> a.. _");
  ops.add({"view_as_complex", "view_as_complex_copy"}, "*a.. _ -> a..");
}

void add_rearrangements(RuleTable& ops) {
  add_moves(ops, {"repeat"}, repeat);
  add_moves(ops, {"flip"}, flip);
  add_moves(ops, {"roll"}, roll);
  add_moves(ops, {"rot90"}, rot90);
  ops.add("pixel_shuffle", "*a.. _ _ _ -> a.. _ _ _").keeps(keeps_any());
  // The kernel of LibTorch 2.13 gives other sizes for an empty batch.
  ops.add("pixel_unshuffle", "*_.. -> _..");
  ops.add({"channel_shuffle", "native_channel_shuffle"}, "*n c! a.. -> n c! a..", keeps_any());
}

}  // namespace

void add_view_rules(RuleTable& ops) {
  add_shapes(ops);
  add_rearrangements(ops);
}

}  // namespace meshtorch::internal
