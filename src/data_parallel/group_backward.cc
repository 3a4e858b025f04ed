// The backward pass of a group: gradients arrive one by one, are reduced bucket by bucket, and become those
// of the shards at its end.
#include <ATen/ATen.h>

#include "backends/pending.h"
#include "data_parallel/gradient_hook.h"
#include "data_parallel/parameter_group.h"
#include "meshtorch/gradients.h"
#include "runtime/hidden_from_modes.h"
#include "signature/collective_signature.h"

namespace meshtorch::internal {

void ParameterGroup::make_buckets() {
  std::int64_t bytes = 0;
  at::ScalarType last = at::ScalarType::Undefined;
  // Gradients come about in the reverse order of the parameters.
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const at::ScalarType type = options_.precision.reduce_dtype.value_or(whole_type(parameters_[i]));
    const auto& limit = buckets_.size() <= 1 ? options_.first_bucket_bytes : options_.bucket_bytes;
    auto bucket = buckets_.end();
    if (limit) {
      if (!buckets_.empty() && last == type && bytes < *limit) bucket = buckets_.end() - 1;
    } else {
      bucket = std::ranges::find_if(buckets_, [&](const Bucket& b) {
        return options_.precision.reduce_dtype.value_or(whole_type(parameters_[b.members[0]])) == type;
      });
    }
    if (bucket == buckets_.end()) {
      bucket = buckets_.insert(buckets_.end(), Bucket{});
      bytes = 0;
    }
    last = type;
    bytes += c10::multiply_integers(parameters_[i].whole_shape()) *
             static_cast<std::int64_t>(c10::elementSize(type));
    bucket->members.push_back(i);
  }
}

void ParameterGroup::before_backward(Form form) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !at::GradMode::is_enabled(),
      "meshtorch: the gradients of data-parallel parameters cannot be differentiated again\n  of: ",
      options_.name, "\n  do: call backward without create_graph, or do without fully_shard and replicate");
  expects_backward_ = false;
  if (!is_in_backward_) begin_backward(form);
  if (!settings_.unshards_in_backward) return;
  unshard(form);
  auto next = order_ ? order_->before(shared_from_this()) : nullptr;
  if (next && !(next->expects_backward_ && next->settings_.unshards_in_backward)) next = nullptr;
  prefetch(settings_.backward_prefetch, next);
}

void ParameterGroup::begin_backward(Form form) {
  is_in_backward_ = true;
  backward_form_ = form;
  keep_hooks();
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
  for (Bucket& bucket : buckets_) {
    bucket.is_reduced = false;
    bucket.missing = 0;
    for (const std::size_t i : bucket.members)
      bucket.missing += parameters_[i].tensor().requires_grad() ? 1 : 0;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor().mutable_grad();
    earlier_[i] = std::exchange(gradient, at::Tensor());
  }
  at_end_of_backward([group = weak_from_this()] {
    const auto alive = group.lock();
    if (alive && !alive->settings_.ends_backward_by_hand) alive->after_backward();
  });
}

void ParameterGroup::on_gradient(std::size_t index) {
  // A parameter that is used in its sharded form, outside its module, has a gradient like any other DTensor.
  if (form_ == Form::sharded && !is_in_backward_) {
    call_user_hooks(parameters_[index].tensor());
    return;
  }
  at::Tensor& slot = parameters_[index].tensor().mutable_grad();
  if (!slot.defined()) return;
  const at::Tensor gradient = std::exchange(slot, at::Tensor());
  if (!is_in_backward_) begin_backward(form_);
  at::Tensor& sum = unreduced_[index];
  {
    const HiddenFromModes hidden;
    const at::NoGradGuard no_grad;
    sum = sum.defined() ? sum + gradient : gradient;
  }
  const bool is_first = !has_gradient_[index];
  has_gradient_[index] = true;
  if (!settings_.syncs || !is_first) return;
  for (Bucket& bucket : buckets_) {
    if (std::ranges::find(bucket.members, index) != bucket.members.end()) --bucket.missing;
  }
  reduce_ready_buckets();
}

void ParameterGroup::reduce_ready_buckets() {
  // In one order on all ranks, whatever the order in which gradients come.
  for (Bucket& bucket : buckets_) {
    if (bucket.is_reduced) continue;
    if (bucket.missing > 0) return;
    reduce(bucket);
  }
  // Nothing tells when a frozen parameter is no longer needed.
  const auto is_frozen = [](const ShardedParameter& p) { return !p.tensor().requires_grad(); };
  if (std::ranges::none_of(parameters_, is_frozen)) reshard_after_backward();
}

void ParameterGroup::reduce(Bucket& bucket) {
  const HiddenFromModes hidden;
  const CallOrigin origin(options_.name);
  std::vector<const ShardedParameter*> parameters;
  std::vector<ShardedParameter::Term> terms;
  for (const std::size_t i : bucket.members) {
    if (!unreduced_[i].defined()) continue;
    parameters.push_back(&parameters_[i]);
    terms.push_back(parameters_[i].term_of(unreduced_[i], backward_form_));
    unreduced_[i].reset();
  }
  bucket.is_reduced = true;
  if (options_.data.shard_axis && order_) order_->begin_reduction(shared_from_this());
  reducing_.push_back(
      start_reduce_terms(parameters, std::move(terms), options_.data, reduction_of(backward_form_)));
}

bool ParameterGroup::waits_for_copies() const {
  return !settings_.syncs_copies && options_.data.shard_axis && options_.data.replicate_axis;
}

TermReduction ParameterGroup::reduction_of(Form form) {
  const bool is_distributed = form == Form::distributed;
  TermReduction reduction{is_distributed ? ReduceOp::sum : ReduceOp::avg, options_.precision.reduce_dtype};
  if (settings_.divisor || (settings_.sums_only && !is_distributed)) {
    reduction.op = ReduceOp::sum;
    // What waits for the sum over copies is divided with it.
    if (!waits_for_copies())
      reduction.divisor = settings_.divisor.value_or(static_cast<double>(options_.data.mesh.size()));
  }
  reduction.over_copies = settings_.syncs_copies;
  const auto index_of = [this](const ReducedGradient& gradient) {
    return static_cast<std::size_t>(gradient.parameter - parameters_.data());
  };
  if (options_.data.shard_axis && options_.data.replicate_axis) {
    reduction.before_copies = [this, index_of](std::vector<ReducedGradient>& gradients) {
      for (ReducedGradient& gradient : gradients) {
        const at::Tensor before = std::exchange(uncopied_[index_of(gradient)], at::Tensor());
        if (before.defined()) gradient.local = gradient.local + before;
      }
    };
  }
  return reduction;
}

void ParameterGroup::finish_reductions() {
  const HiddenFromModes hidden;
  const CallOrigin origin(options_.name);
  const at::NoGradGuard no_grad;
  for (const auto& finish : std::exchange(reducing_, {})) {
    for (ReducedGradient& gradient : finish()) {
      if (waits_for_copies()) {
        uncopied_[static_cast<std::size_t>(gradient.parameter - parameters_.data())] = gradient.local;
        continue;
      }
      if (settings_.on_reduced && gradient.layout != nullptr) {
        wait_pending(gradient.local);
        settings_.on_reduced(gradient.local);
      }
      reduced_.push_back(std::move(gradient));
    }
  }
}

void ParameterGroup::reshard_after_backward() {
  if (settings_.reshards_after_backward) reshard();
}

void ParameterGroup::after_backward() {
  if (order_) order_->drop_unused();
  if (!is_in_backward_) return;
  if (settings_.syncs) reduce_the_rest();
  finish_reductions();
  reshard_after_backward();
  settle_gradients();
  is_in_backward_ = false;
  expects_backward_ = false;
}

void ParameterGroup::settle_gradients() {
  const at::NoGradGuard no_grad;
  std::optional<HiddenFromModes> hidden(std::in_place);
  std::vector<at::Tensor> arrived_for;
  for (const ReducedGradient& gradient : std::exchange(reduced_, {})) {
    const at::Tensor& parameter = gradient.parameter->tensor();
    parameter.mutable_grad() = arrived(gradient);
    arrived_for.push_back(parameter);
  }
  // What still pends on other axes.
  reduce_gradients(arrived_for);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor().mutable_grad();
    const at::Tensor earlier = std::exchange(earlier_[i], at::Tensor());
    if (earlier.defined()) gradient = gradient.defined() ? earlier + gradient : earlier;
  }
  hidden.reset();
  for (const at::Tensor& parameter : arrived_for) call_user_hooks(parameter);
}

void ParameterGroup::abandon_backward() {
  std::ranges::fill(unreduced_, at::Tensor());
  std::ranges::fill(uncopied_, at::Tensor());
  reducing_.clear();
  reduced_.clear();
  reshard();
  settle_gradients();
  is_in_backward_ = false;
}

}  // namespace meshtorch::internal
