// Losses: a mean is the sum divided by the global count, and so is its gradient; logits may be split by
// class.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/binary_cross_entropy_backward_ops.h>
#include <ATen/ops/binary_cross_entropy_ops.h>
#include <ATen/ops/binary_cross_entropy_with_logits_ops.h>
#include <ATen/ops/huber_loss_backward_ops.h>
#include <ATen/ops/huber_loss_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/smooth_l1_loss_backward_ops.h>
#include <ATen/ops/smooth_l1_loss_ops.h>
#include <ATen/ops/soft_margin_loss_backward_ops.h>
#include <ATen/ops/soft_margin_loss_ops.h>

#include "decompose/by_rule.h"
#include "decompose/class_split_loss.h"
#include "decompose/families.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

namespace op = at::_ops;

// Of the losses, one for each element of both tensors after they were broadcast.
double count_of(const at::Tensor& self, const at::Tensor& target) {
  return static_cast<double>(c10::multiply_integers(at::infer_size(self.sizes(), target.sizes())));
}

// `Form` is what the loss takes besides: beta or delta.
template <typename Op, typename... Form>
at::Tensor mean_loss(const at::Tensor& self, const at::Tensor& target, std::int64_t reduction, Form... form) {
  if (reduction != at::Reduction::Mean) return by_rule<Op>(self, target, reduction, form...);
  return Op::call(self, target, at::Reduction::Sum, form...).div(count_of(self, target));
}

// LibTorch's gradient of a mean divides by the elements of the input, also where they are broadcast.
template <typename Op, typename... Form>
at::Tensor mean_loss_backward(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& target,
                              std::int64_t reduction, Form... form) {
  if (reduction != at::Reduction::Mean) return by_rule<Op>(gradient, self, target, reduction, form...);
  return Op::call(gradient.div(static_cast<double>(self.numel())), self, target, at::Reduction::Sum, form...);
}

at::Tensor binary_cross_entropy(const at::Tensor& self, const at::Tensor& target,
                                const std::optional<at::Tensor>& weight, std::int64_t reduction) {
  if (reduction != at::Reduction::Mean)
    return by_rule<op::binary_cross_entropy>(self, target, weight, reduction);
  return at::binary_cross_entropy(self, target, weight, at::Reduction::Sum).div(count_of(self, target));
}

at::Tensor binary_cross_entropy_backward(const at::Tensor& gradient, const at::Tensor& self,
                                         const at::Tensor& target, const std::optional<at::Tensor>& weight,
                                         std::int64_t reduction) {
  if (reduction != at::Reduction::Mean)
    return by_rule<op::binary_cross_entropy_backward>(gradient, self, target, weight, reduction);
  return at::binary_cross_entropy_backward(gradient.div(static_cast<double>(self.numel())), self, target,
                                           weight, at::Reduction::Sum);
}

at::Tensor binary_cross_entropy_with_logits(const at::Tensor& self, const at::Tensor& target,
                                            const std::optional<at::Tensor>& weight,
                                            const std::optional<at::Tensor>& pos_weight,
                                            std::int64_t reduction) {
  if (reduction != at::Reduction::Mean)
    return by_rule<op::binary_cross_entropy_with_logits>(self, target, weight, pos_weight, reduction);
  return at::binary_cross_entropy_with_logits(self, target, weight, pos_weight, at::Reduction::Sum)
      .div(count_of(self, target));
}

at::Tensor log_softmax(const at::Tensor& self, std::int64_t dim, bool half_to_float) {
  auto split = class_split_log_softmax(self, dim, half_to_float);
  return split ? *split : by_rule<op::_log_softmax>(self, dim, half_to_float);
}

at::Tensor log_softmax_backward(const at::Tensor& gradient, const at::Tensor& output, std::int64_t dim,
                                at::ScalarType input_dtype) {
  auto split = class_split_log_softmax_backward(gradient, output, dim, input_dtype);
  return split ? *split : by_rule<op::_log_softmax_backward_data>(gradient, output, dim, input_dtype);
}

using LossAndWeight = std::tuple<at::Tensor, at::Tensor>;

// Two numbers that are pending alike, made whole in one collective.
LossAndWeight both_whole(const at::Tensor& loss, const at::Tensor& weight) {
  const DTensorMeta* meta = meta_of(loss);
  const DTensorMeta* other = meta_of(weight);
  const bool is_alike = meta != nullptr && other != nullptr && meta->layout == other->layout &&
                        loss.scalar_type() == weight.scalar_type();
  if (!is_alike || meta->layout->is_replicated) return {loss, weight};
  const Layout* whole = meta->mesh->replicated();
  const at::Tensor both = whole_local(at::stack({loss, weight}));
  return {wrap(both.select(0, 0), whole, {}, {}), wrap(both.select(0, 1), whole, {}, {})};
}

// A mean is divided by the weights of all targets.
LossAndWeight nll_loss(const at::Tensor& self, const at::Tensor& target,
                       const std::optional<at::Tensor>& weight, std::int64_t reduction,
                       c10::SymInt ignore_index) {
  const std::int64_t ignored = ignore_index.expect_int();
  if (auto split = class_split_nll_loss(self, target, weight, reduction, ignored)) return *split;
  if (reduction != at::Reduction::Mean)
    return by_rule<op::nll_loss_forward>(self, target, weight, reduction, ignore_index);
  const auto [sums, totals] = at::nll_loss_forward(self, target, weight, at::Reduction::Sum, ignored);
  const auto [sum, total] = both_whole(sums, totals);
  return {sum / total, total};
}

LossAndWeight nll_loss2d(const at::Tensor& self, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight, std::int64_t reduction,
                         c10::SymInt ignore_index) {
  auto split = class_split_nll_loss(self, target, weight, reduction, ignore_index.expect_int());
  return split ? *split : by_rule<op::nll_loss2d_forward>(self, target, weight, reduction, ignore_index);
}

template <typename Op>
at::Tensor nll_loss_backward(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& target,
                             const std::optional<at::Tensor>& weight, std::int64_t reduction,
                             c10::SymInt ignore_index, const at::Tensor& total_weight) {
  auto split = class_split_nll_loss_backward(gradient, self, target, weight, reduction,
                                             ignore_index.expect_int(), total_weight);
  return split ? *split : by_rule<Op>(gradient, self, target, weight, reduction, ignore_index, total_weight);
}

}  // namespace

void add_loss_decompositions(DecompositionTable& ops) {
  constexpr Decomposition::Traits kElseByRule{.asks_rule = true};
  ops.add<op::mse_loss>(mean_loss<op::mse_loss>, kElseByRule);
  ops.add<op::mse_loss_backward>(mean_loss_backward<op::mse_loss_backward>, kElseByRule);
  ops.add<op::smooth_l1_loss>(mean_loss<op::smooth_l1_loss, double>, kElseByRule);
  ops.add<op::smooth_l1_loss_backward>(mean_loss_backward<op::smooth_l1_loss_backward, double>, kElseByRule);
  ops.add<op::huber_loss>(mean_loss<op::huber_loss, double>, kElseByRule);
  ops.add<op::huber_loss_backward>(mean_loss_backward<op::huber_loss_backward, double>, kElseByRule);
  ops.add<op::soft_margin_loss>(mean_loss<op::soft_margin_loss>, kElseByRule);
  ops.add<op::soft_margin_loss_backward>(mean_loss_backward<op::soft_margin_loss_backward>, kElseByRule);
  ops.add<op::binary_cross_entropy>(binary_cross_entropy, kElseByRule);
  ops.add<op::binary_cross_entropy_backward>(binary_cross_entropy_backward, kElseByRule);
  ops.add<op::binary_cross_entropy_with_logits>(binary_cross_entropy_with_logits, kElseByRule);
  ops.add<op::_log_softmax>(log_softmax, kElseByRule);
  ops.add<op::_log_softmax_backward_data>(log_softmax_backward, kElseByRule);
  ops.add<op::nll_loss_forward>(nll_loss, kElseByRule);
  ops.add<op::nll_loss2d_forward>(nll_loss2d, kElseByRule);
  ops.add<op::nll_loss_backward>(nll_loss_backward<op::nll_loss_backward>, kElseByRule);
  ops.add<op::nll_loss2d_backward>(nll_loss_backward<op::nll_loss2d_backward>, kElseByRule);
}

}  // namespace meshtorch::internal
