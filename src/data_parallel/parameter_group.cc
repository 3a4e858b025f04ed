// A group of parameters: gathered before forward and backward, dropped after each.
#include "data_parallel/parameter_group.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <mutex>

#include "comm/gather_chunks.h"
#include "data_parallel/gradient_hook.h"

namespace meshtorch {
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
  if (meta->mesh.get() == &data.impl()) return true;
  for (const std::string& name : meta->mesh->names()) {
    if (std::ranges::find(data.names(), name) != data.names().end()) return true;
  }
  return false;
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
  const std::shared_ptr<ParameterGroup> group(new ParameterGroup(parameters, std::move(options)));
  for (std::size_t i = 0; i < group->parameters_.size(); ++i) {
    const at::Tensor& parameter = group->parameters_[i].tensor();
    owners().add(parameter, group);
    call_on_gradient(parameter, group, i);
  }
  return group;
}

ParameterGroup::ParameterGroup(const std::vector<NamedParameter>& parameters, ParameterGroupOptions options)
    : options_(std::move(options)) {
  for (const NamedParameter& p : parameters) parameters_.emplace_back(p.name, p.tensor, options_.data, p.dim);
  for (ShardedParameter& p : parameters_) p.distribute(options_.data, options_.source);
  earlier_.resize(parameters_.size());
  unreduced_.resize(parameters_.size());
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

at::ScalarType ParameterGroup::whole_type(const at::Tensor& parameter) const {
  const auto& type = options_.precision.param_dtype;
  return type && parameter.is_floating_point() ? *type : parameter.scalar_type();
}

Form ParameterGroup::form_for(const std::vector<at::Tensor*>& inputs) const {
  for (const at::Tensor* input : inputs) {
    if (input->defined() && lives_on(*input, options_.data.mesh)) return Form::distributed;
  }
  return Form::local;
}

// Parameters may have been made without memory, and given types, after the group was.
void ParameterGroup::take_memory() {
  std::vector<GatheredMemory::Part> parts;
  std::optional<at::Device> device;
  for (const ShardedParameter& p : parameters_) {
    if (!p.dim()) continue;
    parts.push_back({p.whole_shape(), whole_type(p.tensor())});
    device = p.tensor().device();
  }
  if (parts.empty()) return;
  if (!memory_ || !memory_->fits(parts, *device)) memory_.emplace(parts, *device, options_.name);
  memory_->take();
}

void ParameterGroup::unshard(Form form) {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  const auto was_written = [](const ShardedParameter& p) { return p.was_written(); };
  if (form_ == form && std::ranges::none_of(parameters_, was_written)) return;
  reshard();
  Tensors chunks;
  Tensors wholes;
  Splits dims;
  take_memory();
  for (const ShardedParameter& p : parameters_) {
    const at::Tensor mine = p.shard().to(whole_type(p.tensor()));
    if (!p.dim()) continue;
    chunks.push_back(mine);
    wholes.push_back(memory_->tensors()[wholes.size()]);
    dims.push_back(*p.dim());
  }
  if (const auto group = options_.data.group(options_.data.shard_axis)) {
    const CallOrigin origin(options_.name);
    start_gather_chunks(chunks, wholes, dims, *group)();
  } else {
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      if (chunks[i].sizes() != wholes[i].sizes()) wholes[i].zero_();
      wholes[i].narrow(dims[i], 0, chunks[i].size(dims[i])).copy_(chunks[i]);
    }
  }
  std::size_t next = 0;
  for (ShardedParameter& p : parameters_)
    p.show(form, p.dim() ? wholes[next++] : p.shard().to(whole_type(p.tensor())));
  form_ = form;
}

void ParameterGroup::reshard() {
  if (form_ == Form::sharded) return;
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  for (ShardedParameter& p : parameters_) p.show_shard();
  form_ = Form::sharded;
  if (memory_) memory_->give_back();
}

void ParameterGroup::become_root_of(const std::vector<at::Tensor>& parameters) {
  for (const auto& group : of(parameters)) {
    if (group->is_new()) group->is_root_ = false;
  }
  is_root_ = true;
}

void ParameterGroup::before_forward(const std::vector<at::Tensor*>& inputs) {
  if (is_in_backward_ && !is_running_backward()) abandon_backward();
  unshard(form_for(inputs));
  if (options_.precision.cast_forward_inputs) convert_floating(inputs, options_.precision.param_dtype);
}

void ParameterGroup::after_forward(const std::vector<at::Tensor*>& outputs) {
  convert_floating(outputs, options_.precision.output_dtype);
  const Form form = form_;
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->requires_grad()) continue;
    output->register_hook(
        [group = shared_from_this(), form](const at::Tensor&) { group->before_backward(form); });
  }
  const bool keeps = !options_.reshard_after_forward.value_or(!is_root_.value_or(false));
  const bool comes_back = at::GradMode::is_enabled() && keeps;
  // What a backward pass computes again, it needs at once.
  if (!comes_back && !is_running_backward()) reshard();
}

}  // namespace meshtorch
