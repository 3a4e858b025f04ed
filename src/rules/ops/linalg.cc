// Rules of decompositions and solvers of matrices: each matrix of a batch on its own, and, where a solver is
// linear, each column of the right-hand side.
#include <algorithm>

#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// True if all tensors have the same dims before the last two; these are the batch.
bool have_one_batch(const Shape& a, const Shape& b) {
  return a.size() >= 2 && a.size() == b.size() && std::equal(a.begin(), a.end() - 2, b.begin());
}

void add_factorizations(RuleTable& ops) {
  ops.add({"linalg_matrix_exp", "cholesky", "cholesky_inverse"}, "a.. _ _ -> a.. _ _");
  ops.add({"linalg_cholesky_ex", "linalg_inv_ex"}, "a.. _ _ -> a.. _ _, a..");
  ops.add({"linalg_lu_factor_ex", "linalg_ldl_factor_ex"}, "a.. _ _ -> a.. _ _, a.. _, a..");
  ops.add("geqrf", "a.. _ _ -> a.. _ _, a.. _");
  ops.add("linalg_householder_product", "a.. _ _, a.. _ -> a.. _ _");
  ops.add("_linalg_det", "a.. _ _ -> a.., a.. _ _, a.. _");
  ops.add("_linalg_slogdet", "a.. _ _ -> a.., a.., a.. _ _, a.. _");
  ops.add("linalg_eig", "a.. _ _ -> a.. _, a.. _ _");
  ops.add("_linalg_eigvals", "a.. _ _ -> a.. _");
  // What is not asked for is a tensor without elements.
  ops.choose("_linalg_eigh", [](const OpArguments& call) -> RuleUse {
    return {call.flag("compute_v") ? Rule("a.. _ _ -> a.. _, a.. _ _") : Rule("a.. _ _ -> a.. _, +_")};
  });
  ops.choose("_linalg_svd", [](const OpArguments& call) -> RuleUse {
    return {call.flag("compute_uv") ? Rule("a.. _ _ -> a.. _ _, a.. _, a.. _ _")
                                    : Rule("a.. _ _ -> +_, a.. _, +_")};
  });
  ops.choose("linalg_lu", [](const OpArguments& call) -> RuleUse {
    return {call.flag("pivot") ? Rule("a.. _ _ -> a.. _ _, a.. _ _, a.. _ _")
                               : Rule("a.. _ _ -> +_, a.. _ _, a.. _ _")};
  });
}

// Matrices of one batch; anything else, as batches that are broadcast, is not split.
void add_solvers(RuleTable& ops) {
  ops.choose({"cholesky_solve", "_cholesky_solve_helper"}, [](const OpArguments& call) -> RuleUse {
    const Shape factor = call.shape(call.has("input2") ? "input2" : "A");
    return {have_one_batch(call.shape("self"), factor) ? Rule("*a.. _ n, a.. _ _ -> a.. _ n")
                                                       : Rule("_.., _.. -> _..")};
  });
  ops.choose("linalg_solve_triangular", [](const OpArguments& call) -> RuleUse {
    if (!have_one_batch(call.shape("self"), call.shape("B"))) return {"_.., _.. -> _.."};
    return {call.flag("left") ? Rule("a.. _ _, *a.. _ n -> a.. _ n") : Rule("a.. _ _, *a.. n _ -> a.. n _")};
  });
  ops.choose("triangular_solve", [](const OpArguments& call) -> RuleUse {
    return {have_one_batch(call.shape("self"), call.shape("A")) ? Rule("a.. _ _, a.. _ _ -> a.. _ _, a.. _ _")
                                                                : Rule("_.., _.. -> _.., _..")};
  });
  ops.choose("_linalg_solve_ex", [](const OpArguments& call) -> RuleUse {
    return {have_one_batch(call.shape("A"), call.shape("B"))
                ? Rule("a.. _ _, a.. _ _ -> a.. _ _, a.. _ _, a.. _, a..")
                : Rule("_.., _.. -> _.., _.., _.., _..")};
  });
  ops.choose("linalg_lu_solve", [](const OpArguments& call) -> RuleUse {
    if (!have_one_batch(call.shape("LU"), call.shape("B"))) return {"_.., _.., _.. -> _.."};
    return {call.flag("left") ? Rule("a.. _ _, a.. _, *a.. _ n -> a.. _ n")
                              : Rule("a.. _ _, a.. _, *a.. n _ -> a.. n _")};
  });
}

// Distances between the rows of two matrices; the gradient is a sum over the rows of the second.
void add_distances(RuleTable& ops) {
  ops.choose({"_cdist_forward", "_euclidean_dist"}, [](const OpArguments& call) -> RuleUse {
    return {have_one_batch(call.shape("x1"), call.shape("x2")) ? Rule("a.. p m!, a.. r m! -> a.. p r")
                                                               : Rule("_.., _.. -> _..")};
  });
  ops.choose("_cdist_backward", [](const OpArguments& call) -> RuleUse {
    return {have_one_batch(call.shape("x1"), call.shape("x2"))
                ? Rule("*a.. p r, a.. p m!, a.. r m!, a.. p r -> a.. p m!")
                : Rule("_.., _.., _.., _.. -> _..")};
  });
}

}  // namespace

void add_linalg_rules(RuleTable& ops) {
  add_factorizations(ops);
  add_solvers(ops);
  add_distances(ops);
}

}  // namespace meshtorch::internal
