// Calls of reductions, scans, sorts, transforms and losses.
#include "call_table.h"

namespace meshtorch::testing {

using namespace inputs;

namespace {

void add_reductions(CallTable& t) {
  const Ints s{5, 3, 4};
  const torch::Tensor truth = x(s) > 0;
  t.add({"sum", "nansum", "prod", "count_nonzero", "max", "min", "median", "nanmedian", "_aminmax", "aminmax",
         "any", "all", "norm.Scalar", "argmax", "argmin"},
        {distinct(s)});
  t.add({"sum", "prod", "max", "any"}, {x({})});
  t.add({"_is_all_true", "_is_any_true", "all", "any"}, {truth});
  t.add({"sum", "prod"}, {distinct(s)}, {{"dtype", at::kLong}});
  t.add("sum", {truth});
  for (const int64_t dim : {0, 1, -1}) {
    for (const bool keepdim : {false, true}) {
      const std::map<std::string, c10::IValue> one{{"dim", dim}, {"keepdim", keepdim}};
      const std::map<std::string, c10::IValue> list{{"dim", Ints{dim}}, {"keepdim", keepdim}};
      t.add({"prod.dim_int", "any.dim", "all.dim", "max.dim", "min.dim", "median.dim", "nanmedian.dim",
             "_aminmax.dim", "aminmax", "argmax", "argmin", "mode"},
            {distinct(s)}, one);
      t.add({"sum.dim_IntList", "nansum", "amax", "amin", "any.dims", "all.dims", "std.correction",
             "var.correction", "std_mean.correction", "var_mean.correction", "logsumexp",
             "linalg_vector_norm", "linalg__powsum", "norm.ScalarOpt_dim"},
            {distinct(s)}, list);
      t.add({"norm.ScalarOpt_dim_dtype"}, {distinct(s)},
            {{"p", 3}, {"dim", Ints{dim}}, {"keepdim", keepdim}, {"dtype", at::kDouble}});
      t.add("kthvalue", {distinct(s)}, {{"k", 2}, {"dim", dim}, {"keepdim", keepdim}});
    }
  }
  t.add({"sum.dim_IntList", "nansum", "amax", "amin", "any.dims", "all.dims", "std.correction",
         "var_mean.correction", "logsumexp", "linalg_vector_norm"},
        {distinct(s)}, {{"dim", Ints{0, 2}}, {"keepdim", true}});
  t.add({"sum.dim_IntList", "amax", "linalg_vector_norm"}, {distinct(s)}, {{"dim", Ints{}}});
  t.add("count_nonzero", {x(s)}, {{"dim", 1}});
  t.add("count_nonzero.dim_IntList", {x(s)}, {{"dim", Ints{0, 2}}});
  t.add("norm.ScalarOpt_dtype", {distinct(s)}, {{"p", 2}, {"dtype", at::kDouble}});
  t.add("_foreach_max", {Tensors{distinct({5, 4}), distinct({7})}});
}

void add_along_dims(CallTable& t) {
  const Ints s{5, 3, 4};
  for (const int64_t dim : {0, -1}) {
    t.add({"cumsum", "cumprod", "logcumsumexp", "_logcumsumexp", "cummax", "cummin", "sort"}, {distinct(s)},
          {{"dim", dim}});
    t.add("sort.stable", {distinct(s)}, {{"stable", true}, {"dim", dim}});
    t.add("topk", {distinct(s)}, {{"k", 2}, {"dim", dim}});
    t.add({"_softmax", "_log_softmax", "_safe_softmax"}, {x(s)}, {{"dim", dim}});
  }
  t.add({"_softmax", "_log_softmax"}, {x({})}, {{"dim", 0}});
  t.add("cumsum", {x(s)}, {{"dim", 1}, {"dtype", at::kLong}});
  t.add("_fft_c2c", {torch::complex(x(s), x(s, 2))},
        {{"dim", Ints{1}}, {"normalization", 0}, {"forward", true}});
  t.add("_fft_r2c", {x(s)}, {{"dim", Ints{0, 2}}, {"normalization", 1}, {"onesided", true}});
  t.add("_fft_c2r", {torch::complex(x(s), x(s, 2))},
        {{"dim", Ints{2}}, {"normalization", 2}, {"last_dim_size", 6}});
  t.add("glu", {x({5, 4, 3})}, {{"dim", 1}});
  t.add("glu_backward", {x({5, 2, 3}), x({5, 4, 3})}, {{"dim", 1}});
}

void add_losses(CallTable& t) {
  const Ints s{5, 4};
  const torch::Tensor p = torch::sigmoid(x(s)), q = torch::sigmoid(x(s, 2));
  for (const int64_t reduction : {0, 1, 2}) {
    const std::map<std::string, c10::IValue> how{{"reduction", reduction}};
    const torch::Tensor grad = reduction == 0 ? x(s, 5) : x({}, 5);
    t.add({"mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"}, {x(s), x(s, 2)}, how);
    t.add({"mse_loss", "smooth_l1_loss"}, {x(s), x({4}, 2)}, how);
    t.add(
        {"mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "soft_margin_loss_backward"},
        {grad, x(s), x(s, 2)}, how);
    t.add({"binary_cross_entropy", "binary_cross_entropy_with_logits"}, {p, q}, how);
    t.add({"binary_cross_entropy", "binary_cross_entropy_with_logits"}, {p, q, positive(s, 3)}, how);
    t.add("binary_cross_entropy_with_logits", {p, q, kAbsent, positive(s, 3)}, how);
    t.add("binary_cross_entropy_backward", {grad, p, q, positive(s, 3)}, how);
    for (const bool weighted : {false, true}) {
      const c10::IValue weight = weighted ? positive({4}) : kAbsent;
      std::map<std::string, c10::IValue> with{{"reduction", reduction}, {"ignore_index", 2}};
      t.add("nll_loss_forward", {x({5, 4}), index({5}, 4), weight}, with);
      t.add("nll_loss2d_forward", {x({5, 4, 2, 3}), index({5, 2, 3}, 4), weight}, with);
      t.add("nll_loss_backward",
            {reduction == 0 ? x({5}, 3) : x({}, 3), x({5, 4}), index({5}, 4), weight, positive({}, 4)}, with);
      t.add("nll_loss2d_backward",
            {reduction == 0 ? x({5, 2, 3}, 3) : x({}, 3), x({5, 4, 2, 3}), index({5, 2, 3}, 4), weight,
             positive({}, 4)},
            with);
    }
  }
  t.add("nll_loss_forward", {x({4}), index({}, 4), kAbsent}, {{"reduction", 2}, {"ignore_index", -100}});
}

}  // namespace

std::vector<Call> reduction_calls() {
  CallTable t;
  add_reductions(t);
  add_along_dims(t);
  add_losses(t);
  return std::move(t).calls();
}

}  // namespace meshtorch::testing
