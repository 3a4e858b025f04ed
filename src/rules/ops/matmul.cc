// Rules of matrix products: linear in each factor, contracted names become pending sums.
#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// LibTorch 2.13 does not broadcast `self` where a rank has an empty part of the matrix.
RuleUse addmv(const OpArguments& call) {
  const Shape matrix = call.shape("mat");
  if (matrix.size() != 2 || call.shape("self") != Shape{matrix[0]}) {
    return {"_.., _.., _.. -> _.."};
  }
  return {"+m, *m k, *k -> m"};
}

// Not linear: what is contracted must be whole.
RuleUse addmm_activation(const OpArguments& call) {
  const Shape self = call.shape("self");
  const Shape columns = call.shape("mat2");
  if (columns.size() == 2 && self == Shape{columns[1]}) return {"n, m k!, k! n -> m n"};
  return {"_.., _.., _.. -> _.."};
}

}  // namespace

void add_matmul_rules(RuleTable& ops) {
  ops.add("mm", "*m k, *k n -> m n");
  ops.add("bmm", "*b m k, *b k n -> b m n");
  ops.add("mv", "*m k, *k -> m");
  ops.add({"dot", "vdot"}, "*k, *k ->");
  ops.add("addmm", "+..., *m k, *k n -> m n");
  ops.add("baddbmm", "+..., *b m k, *b k n -> b m n");
  ops.add("addbmm", "+..., *b m k, *b k n -> m n");
  ops.choose("addmv", addmv);
  ops.add("addr", "+..., *m, *n -> m n");
  ops.choose("_addmm_activation", addmm_activation);
  ops.add("_int_mm", "m k, k n -> m n");
  ops.add("_foreach_mm", "*m k[], *k n[] -> m n[]");
  ops.add("linalg_cross", "*a.. x! b.., *a.. x! b.. -> a.. x! b..").at("x", "dim");
}

}  // namespace meshtorch::internal
