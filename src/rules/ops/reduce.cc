// Rules of reductions, scans, sorts and transforms: what happens along some dims of one tensor.
#include <algorithm>
#include <utility>

#include "rules/ops/by_dims.h"

namespace meshtorch::internal {
namespace {

using Dims = std::optional<std::vector<bool>>;  // which dims; nothing if the call is mistaken

// What a result has in the place of the dims worked on.
enum class Then : std::uint8_t { nothing, one, same, another_size };

struct Work {
  Then then = Then::nothing;
  int results = 1;
  bool whole = true;  // the dims must be whole; else their parts are reduced by the mesh
  bool linear = false;
  ReduceOp op = ReduceOp::sum;
};

// A tensor without dims is worked on as if it had one.
Dims marked(const std::vector<std::int64_t>& dims, const Shape& shape) {
  const std::int64_t rank = rank_of(shape);
  if (!fits_a_rule(rank)) return std::nullopt;
  if (rank > 0) return named_dims(dims, rank);
  return named_dims(dims, 1) ? Dims(std::in_place) : std::nullopt;
}

Dims all_dims(const Shape& shape) {
  if (!fits_a_rule(rank_of(shape))) return std::nullopt;
  return std::vector<bool>(shape.size(), true);
}

// For any arguments: nothing is split, and a mistake is left for the operator to report.
RuleUse replicated(int results) { return {results == 1 ? Rule("_.. -> _..") : Rule("_.. -> _.., _..")}; }

RuleUse along(const Dims& dims, const Work& work) {
  if (!dims) return replicated(work.results);
  std::string operand = work.linear ? "*" : "";
  std::string result;
  for (std::size_t d = 0; d < dims->size(); ++d) {
    const std::string name = " x" + std::to_string(d);
    const bool is_worked_on = (*dims)[d];
    operand += name;
    if (is_worked_on && work.whole) operand += "!";
    if (!is_worked_on || work.then == Then::same) {
      result += name;
    } else if (work.then == Then::one) {
      result += " 1";
    } else if (work.then == Then::another_size) {
      result += " _";
    }
  }
  std::string text = operand + " ->" + result;
  for (int i = 1; i < work.results; ++i) text += "," + result;
  return {Rule::parse(text), {}, work.op};
}

Dims one_dim(const OpArguments& call) { return marked({call.integer("dim")}, call.shape("self")); }

// No list or an empty one stands for all dims.
Dims listed_dims(const OpArguments& call) {
  const Shape shape = call.shape("self");
  if (!call.has("dim") || call.integers("dim").empty()) return all_dims(shape);
  return marked(call.integers("dim"), shape);
}

// The same where the meaning of an empty list is the operator's own.
Dims listed_dims_or_none(const OpArguments& call) {
  if (call.has("dim") && call.integers("dim").empty()) return std::nullopt;
  return listed_dims(call);
}

Then kept(const OpArguments& call) { return call.flag("keepdim") ? Then::one : Then::nothing; }

// A sum that first casts to whole numbers is not linear. Numbers of c10::ScalarType.
bool sums_as_it_is(const OpArguments& call) {
  if (!call.has("dtype")) return true;
  constexpr std::int64_t kHalf = 5, kComplexDouble = 10, kBFloat16 = 15;
  const std::int64_t dtype = call.integer("dtype");
  return (dtype >= kHalf && dtype <= kComplexDouble) || dtype == kBFloat16;
}

// No backend multiplies complex numbers.
bool multiplies_complex(const OpArguments& call) {
  constexpr std::int64_t kComplexHalf = 8, kComplexDouble = 10;
  if (!call.has("dtype")) return call.is_complex("self");
  const std::int64_t dtype = call.integer("dtype");
  return dtype >= kComplexHalf && dtype <= kComplexDouble;
}

// ---- reductions that the mesh can finish ----

void add_parted(RuleTable& ops) {
  ops.choose("sum", [](const OpArguments& call) {
    return along(all_dims(call.shape("self")), {.whole = false, .linear = sums_as_it_is(call)});
  });
  ops.choose("sum.dim_IntList", [](const OpArguments& call) {
    return along(listed_dims(call), {.then = kept(call), .whole = false, .linear = sums_as_it_is(call)});
  });
  ops.choose("nansum", [](const OpArguments& call) {
    return along(listed_dims(call), {.then = kept(call), .whole = false});
  });
  ops.choose("prod.dim_int", [](const OpArguments& call) {
    return along(one_dim(call),
                 {.then = kept(call), .whole = multiplies_complex(call), .op = ReduceOp::product});
  });
  ops.choose("count_nonzero", [](const OpArguments& call) {
    return along(call.has("dim") ? one_dim(call) : all_dims(call.shape("self")), {.whole = false});
  });
  ops.choose("count_nonzero.dim_IntList",
             [](const OpArguments& call) { return along(listed_dims_or_none(call), {.whole = false}); });

  ops.choose("linalg__powsum", [](const OpArguments& call) {
    return along(listed_dims(call), {.then = kept(call), .whole = false});
  });
  ops.add("_foreach_powsum.Scalar", "a..[] -> []");

  ops.add("histc", "a.. -> _");  // between the limits that decompose/reduce.cc sees to
  ops.choose("prod", [](const OpArguments& call) {
    return along(all_dims(call.shape("self")), {.whole = multiplies_complex(call), .op = ReduceOp::product});
  });
  // What is pending by the operator's own reduction stays so.
  ops.add("max", "a.. ->").reduce(ReduceOp::max).keeps({{ReduceOp::max, ReduceOp::max}});
  ops.add("min", "a.. ->").reduce(ReduceOp::min).keeps({{ReduceOp::min, ReduceOp::min}});
  for (const char* op : {"any", "_is_any_true"}) {
    ops.add(op, "a.. ->").reduce(ReduceOp::max);
  }
  for (const char* op : {"all", "_is_all_true"}) {
    ops.add(op, "a.. ->").reduce(ReduceOp::min);
  }
  const auto add_ordered = [&](const char* op, Dims (*dims)(const OpArguments&),
                               ReduceOp reduce) -> RuleEntry& {
    return ops.choose(op, [dims, reduce](const OpArguments& call) {
      return along(dims(call), {.then = kept(call), .whole = false, .op = reduce});
    });
  };
  add_ordered("amax", listed_dims, ReduceOp::max).keeps({{ReduceOp::max, ReduceOp::max}});
  add_ordered("amin", listed_dims, ReduceOp::min).keeps({{ReduceOp::min, ReduceOp::min}});
  add_ordered("any.dim", one_dim, ReduceOp::max);
  add_ordered("all.dim", one_dim, ReduceOp::min);
  add_ordered("any.dims", listed_dims_or_none, ReduceOp::max);
  add_ordered("all.dims", listed_dims_or_none, ReduceOp::min);
}

// ---- reductions of whole dims ----

void add_whole(RuleTable& ops) {
  for (const char* op :
       {"max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode", "kthvalue", "_aminmax.dim"}) {
    ops.choose(
        op, [](const OpArguments& call) { return along(one_dim(call), {.then = kept(call), .results = 2}); });
  }
  ops.choose("aminmax", [](const OpArguments& call) {
    return call.has("dim") ? along(one_dim(call), {.then = kept(call), .results = 2}) : replicated(2);
  });
  ops.choose({"argmax", "argmin"}, [](const OpArguments& call) {
    return call.has("dim") ? along(one_dim(call), {.then = kept(call)}) : replicated(1);
  });
  for (const char* op : {"logsumexp", "norm.ScalarOpt_dim_dtype"}) {
    ops.choose(
        op, [](const OpArguments& call) { return along(listed_dims_or_none(call), {.then = kept(call)}); });
  }
  ops.choose({"std_mean.correction", "var_mean.correction"}, [](const OpArguments& call) {
    return along(listed_dims_or_none(call), {.then = kept(call), .results = 2});
  });
  ops.add({"median", "nanmedian", "norm.ScalarOpt_dtype"}, "a..! ->");
  ops.add("_aminmax", "a..! -> ,");
}

// ---- one dim keeps its place ----

// Each slice along `dim` is scaled by its own norm.
RuleUse renorm(const OpArguments& call) {
  Dims others = one_dim(call);
  if (others) others->flip();
  return along(others, {.then = Then::same});
}

void add_scans_and_sorts(RuleTable& ops) {
  ops.choose("cumsum", [](const OpArguments& call) {
    return along(one_dim(call), {.then = Then::same, .linear = sums_as_it_is(call)});
  });
  ops.choose({"cumprod", "logcumsumexp", "_logcumsumexp"},
             [](const OpArguments& call) { return along(one_dim(call), {.then = Then::same}); });
  ops.choose({"cummax", "cummin", "sort", "sort.stable"}, [](const OpArguments& call) {
    return along(one_dim(call), {.then = Then::same, .results = 2});
  });
  ops.choose("renorm", renorm);
  ops.choose("topk", [](const OpArguments& call) {
    return along(one_dim(call), {.then = Then::another_size, .results = 2});
  });
}

void add_fourier(RuleTable& ops) {
  ops.choose({"_fft_c2c", "_fft_r2c", "_fft_c2r"},
             [](const OpArguments& call) {
               return along(marked(call.integers("dim"), call.shape("self")),
                            {.then = Then::another_size, .linear = true});
             })
      .needs_elements();
}

}  // namespace

void add_reduce_rules(RuleTable& ops) {
  add_parted(ops);
  add_whole(ops);
  add_scans_and_sorts(ops);
  add_fourier(ops);
}

}  // namespace meshtorch::internal
