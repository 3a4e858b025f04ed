// Rules of operators that join tensors, or put one into another: additive in all they join.
#include <algorithm>

#include "rules/ops/by_dims.h"

namespace meshtorch::internal {
namespace {

// Any list: nothing is split, and a mistake is left for the operator to report.
const Rule kWholeList = "_..[] -> _..";

// True if the shapes have equal ranks and equal sizes in every dim but `except`.
bool agree(const std::vector<Shape>& shapes, std::size_t except) {
  return std::all_of(shapes.begin(), shapes.end(), [&](const Shape& shape) {
    if (shape.size() != shapes[0].size()) return false;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (d != except && shape[d] != shapes[0][d]) return false;
    }
    return true;
  });
}

// Tensors of shape {0} that are joined to others of any rank are left to `agree`.
RuleUse cat(const OpArguments& call) {
  const std::vector<Shape> shapes = call.shapes("tensors");
  if (shapes.empty()) return {kWholeList};
  const auto before = wrapped(call.integer("dim"), rank_of(shapes[0]));
  if (!before || !agree(shapes, static_cast<std::size_t>(*before))) return {kWholeList};
  return {"+a.. _ b..[] -> a.. _ b..", {.lengths = {{"a", *before}}, .positions = {}, .sizes = {}}};
}

RuleUse stack(const OpArguments& call) {
  const std::vector<Shape> shapes = call.shapes("tensors");
  if (shapes.empty()) return {kWholeList};
  const auto before = wrapped(call.integer("dim"), rank_of(shapes[0]) + 1);
  if (!before || !agree(shapes, shapes[0].size())) return {kWholeList};
  return {"+a.. b..[] -> a.. _ b..", {.lengths = {{"a", *before}}, .positions = {}, .sizes = {}}};
}

// One part of `self`, at one dim, is replaced by `src`.
RuleUse replace_part(const OpArguments& call, Rule rule, bool src_has_dim) {
  const Shape self = call.shape("self");
  Shape rest = self;
  Shape src = call.shape("src");
  const auto before = wrapped(call.integer("dim"), rank_of(self));
  if (!before) return {"_.., _.. -> _.."};
  rest.erase(rest.begin() + *before);
  if (src_has_dim && src.size() == self.size()) src.erase(src.begin() + *before);
  if (rest != src) return {"_.., _.. -> _.."};
  return {rule, {.lengths = {{"a", *before}}, .positions = {}, .sizes = {}}};
}

}  // namespace

void add_join_rules(RuleTable& ops) {
  ops.choose("cat", cat).keeps(keeps_any());
  for (const char* op : {"stack", "_stack"}) ops.choose(op, stack).keeps(keeps_any());
  ops.choose("slice_scatter", [](const OpArguments& call) {
    return replace_part(call, "+a.. s! b.., +a.. _ b.. -> a.. s! b..", true);
  });
  ops.choose("select_scatter", [](const OpArguments& call) {
    return replace_part(call, "+a.. s! b.., +a.. b.. -> a.. s! b..", false);
  });
}

}  // namespace meshtorch::internal
