// A group of parameters and the forward pass of its module.
#include "data_parallel/parameter_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "data_parallel/gradient_hook.h"
#include "data_parallel/malloc_retention.h"

namespace meshtorch::internal {
namespace {

// Which group a parameter belongs to.
class Owners {
 public:
  void add(const at::Tensor& parameter, const std::weak_ptr<ParameterGroup>& group) {
    const std::lock_guard lock(mutex_);
    owners_[parameter.unsafeGetTensorImpl()] = group;
  }
  void remove(const at::Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    owners_.erase(parameter.unsafeGetTensorImpl());
  }
  std::shared_ptr<ParameterGroup> find(const at::Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(parameter.unsafeGetTensorImpl());
    return found == owners_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<const c10::TensorImpl*, std::weak_ptr<ParameterGroup>> owners_;
};

Owners& owners() {
  static Owners all;
  return all;
}

bool lives_on(const at::Tensor& tensor, const DeviceMesh& data) {
  const DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) return false;
  if (meta->mesh.get() == &impl_of(data)) return true;
  return std::ranges::any_of(meta->mesh->names(), [&](const std::string& name) {
    return std::ranges::find(data.names(), name) != data.names().end();
  });
}

void convert_floating(const std::vector<at::Tensor*>& tensors, const std::optional<at::ScalarType>& type) {
  if (!type) return;
  for (at::Tensor* tensor : tensors) {
    if (tensor->defined() && tensor->is_floating_point()) *tensor = tensor->to(*type);
  }
}

}  // namespace

std::shared_ptr<ParameterGroup> ParameterGroup::make(const std::vector<NamedParameter>& parameters,
                                                     ParameterGroupOptions options) {
  configure_malloc_retention();
  std::shared_ptr<ParameterGroup> group(new ParameterGroup(parameters, std::move(options)));
  for (const ShardedParameter& p : group->parameters_) owners().add(p.tensor(), group);
  group->keep_hooks();
  return group;
}

ParameterGroup::ParameterGroup(const std::vector<NamedParameter>& parameters, ParameterGroupOptions options)
    : options_(std::move(options)) {
  for (const NamedParameter& p : parameters)
    parameters_.emplace_back(p.name, p.tensor, options_.data, p.dim, p.whole_type);
  if (const auto reshards = options_.reshard_after_forward) set_reshard_after_forward(*reshards);
  for (ShardedParameter& p : parameters_) p.distribute(options_.data, options_.source);
  earlier_.resize(parameters_.size());
  unreduced_.resize(parameters_.size());
  uncopied_.resize(parameters_.size());
  has_gradient_.resize(parameters_.size());
  make_buckets();
}

ParameterGroup::~ParameterGroup() {
  for (const ShardedParameter& p : parameters_) owners().remove(p.tensor());
}

std::shared_ptr<ParameterGroup> ParameterGroup::of(const at::Tensor& parameter) {
  return owners().find(parameter);
}

std::vector<std::shared_ptr<ParameterGroup>> ParameterGroup::of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::shared_ptr<ParameterGroup>> groups;
  for (const at::Tensor& parameter : parameters) {
    auto group = of(parameter);
    if (group != nullptr && std::ranges::find(groups, group) == groups.end())
      groups.push_back(std::move(group));
  }
  return groups;
}

at::ScalarType ParameterGroup::whole_type(const ShardedParameter& parameter) const {
  if (parameter.whole_type()) return *parameter.whole_type();
  const auto& type = options_.precision.param_dtype;
  const at::Tensor& tensor = parameter.tensor();
  return type && tensor.is_floating_point() ? *type : tensor.scalar_type();
}

Form ParameterGroup::form_for(const std::vector<at::Tensor*>& inputs) const {
  for (const at::Tensor* input : inputs) {
    if (input->defined() && lives_on(*input, options_.data.mesh)) return Form::distributed;
  }
  return Form::local;
}

void ParameterGroup::become_root_of(const std::vector<at::Tensor>& parameters,
                                    const std::vector<at::Tensor*>& inputs) {
  const auto groups = of(parameters);
  const auto has_data = [](const at::Tensor* input) { return input->defined() && !input->is_meta(); };
  if (std::ranges::any_of(inputs, has_data)) {
    std::string names;
    for (const auto& group : groups) names += group->names_without_data();
    TORCH_CHECK_VALUE(
        names.empty(), "meshtorch: parameters are still on the meta device", names,
        "\n  do: give them memory and values before the first forward pass, by materialize() or "
        "to_empty()");
  }
  order_ = std::make_shared<GroupOrder>();
  for (const auto& group : groups) {
    if (!group->is_new()) continue;
    group->is_root_ = false;
    group->order_ = order_;
  }
  is_root_ = true;
}

std::string ParameterGroup::names_without_data() const {
  std::string names;
  for (const ShardedParameter& p : parameters_) {
    if (p.tensor().is_meta()) names.append(names.empty() ? "" : ", ").append(p.name());
  }
  return names.empty() ? names : "\n  of " + options_.name + ": " + names;
}

void ParameterGroup::replace(const at::Tensor& parameter, const at::Tensor& by) {
  reshard();
  cancel_gather();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].tensor().is_same(parameter)) continue;
    parameters_[i].replace(by);
    owners().remove(parameter);
    owners().add(by, weak_from_this());
    call_on_gradient(by, weak_from_this(), i);
  }
}

// A hook that a user has set since has taken the place of the group's.
void ParameterGroup::keep_hooks() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    call_on_gradient(parameters_[i].tensor(), weak_from_this(), i);
}

namespace {
thread_local std::uint64_t forwards = 0;
}  // namespace

std::uint64_t ParameterGroup::forwards_of_thread() { return forwards; }

void ParameterGroup::before_forward(const std::vector<at::Tensor*>& inputs) {
  ++forwards;
  const bool is_again = is_running_backward();  // what a backward pass computes again
  if (is_in_backward_ && !is_again && !settings_.ends_backward_by_hand) abandon_backward();
  keep_hooks();
  std::shared_ptr<ParameterGroup> next;
  if (!is_again && order_) {
    if (is_root_.value_or(false)) order_->begin_pass();
    next = order_->enter(shared_from_this());
  }
  unshard(form_for(inputs));
  if (!is_again) prefetch(settings_.forward_prefetch, next);
  if (options_.precision.cast_forward_inputs) convert_floating(inputs, options_.precision.param_dtype);
}

void ParameterGroup::after_forward(const std::vector<at::Tensor*>& outputs, bool is_last) {
  convert_floating(outputs, options_.precision.output_dtype);
  const Form form = form_;
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->requires_grad()) continue;
    output->register_hook(
        [group = shared_from_this(), form](const at::Tensor&) { group->before_backward(form); });
    expects_backward_ = true;
  }
  if (!is_last || is_running_backward()) return;  // backward needs them at once
  if (order_) {
    order_->leave(shared_from_this());
    if (is_root_.value_or(false)) order_->end_pass();
  }
  const ReshardAfterForward reshards = options_.reshard_after_forward.value_or(!is_root_.value_or(false));
  if (at::GradMode::is_enabled() && reshards.ranks() == 1) return;
  if (at::GradMode::is_enabled()) keep_parts();
  reshard();
}

void ParameterGroup::reset_pass() {
  if (is_in_backward_) abandon_backward();
  if (order_) order_->drop_unused();
  cancel_gather();
  kept_parts_.clear();
  expects_backward_ = false;
  reshard();
}

}  // namespace meshtorch::internal
