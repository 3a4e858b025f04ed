// Making the parameters of a group whole, at once or ahead of time, and dropping them again.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "collectives/chunks.h"
#include "data_parallel/gradient_hook.h"
#include "data_parallel/parameter_group.h"
#include "runtime/hidden_from_modes.h"
#include "runtime/transforms.h"
#include "world/agree.h"

namespace meshtorch::internal {
namespace {

// Shards and whole parameters are ordinary tensors, whatever the program computes with them: in inference
// mode, in transforms of functions such as jvp.
struct OrdinaryTensors {
  HiddenFromModes hidden;
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
  OutsideTransforms no_transforms;
};

}  // namespace

// Parameters may have been made without memory, and given types, after the group was.
void ParameterGroup::take_memory() {
  std::vector<GatheredMemory::Part> parts;
  std::optional<at::Device> device;
  for (const ShardedParameter& p : parameters_) {
    if (!p.dim()) continue;
    parts.push_back({p.whole_shape(), whole_type(p)});
    device = p.tensor().device();
  }
  if (parts.empty()) return;
  if (!memory_ || !memory_->fits(parts, *device)) memory_.emplace(parts, *device, options_.name);
  memory_->take();
}

std::int64_t ParameterGroup::gathered_bytes() const {
  std::int64_t bytes = 0;
  for (const ShardedParameter& p : parameters_) {
    if (p.dim())
      bytes += c10::multiply_integers(p.whole_shape()) *
               static_cast<std::int64_t>(c10::elementSize(whole_type(p)));
  }
  return bytes;
}

std::vector<WriteCounts> ParameterGroup::writes_to_shards() const {
  std::vector<WriteCounts> writes;
  for (const ShardedParameter& p : parameters_) {
    count_writes_to(p.shard());
    writes.emplace_back(p.shard());
  }
  return writes;
}

// What operators wrote since it was sent counts, which all ranks know. What one rank wrote to its own part,
// the others do not know of.
void ParameterGroup::cancel_gather_of_written() {
  if (!gathering_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (gathering_->writes[i].is_written_by_operators(parameters_[i].shard())) return cancel_gather();
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!gathering_->writes[i].is_written(parameters_[i].shard())) continue;
    cancel_gather();
    TORCH_CHECK(false,
                "meshtorch: the local tensor of a parameter was written while the parameter was gathered\n  "
                "parameter: ",
                parameters_[i].name(), " of ", options_.name,
                "\n  do: write to to_local() before unshard() and before the forward pass, or write to the "
                "parameter");
  }
}

// Whether parameters that are whole already may be used as they are. A backward pass uses what its forward
// pass used. A forward pass gathers them again if they were written, on any rank.
bool ParameterGroup::are_up_to_date() const {
  if (is_running_backward()) return true;
  const bool mine =
      std::ranges::none_of(parameters_, [](const ShardedParameter& p) { return p.was_written(); });
  const auto group = options_.data.group(options_.data.shard_axis);
  return group ? all_say(*group, "whether whole parameters are as they were gathered", mine) : mine;
}

void ParameterGroup::start_gather() {
  if (form_ != Form::sharded || gathering_) return;
  const OrdinaryTensors mode;
  // A forward pass begins anew.
  if (!is_running_backward()) kept_parts_.clear();
  Tensors chunks;
  Splits dims;
  take_memory();
  for (const ShardedParameter& p : parameters_) {
    if (!p.dim()) continue;
    if (kept_parts_.empty()) chunks.push_back(p.shard().to(whole_type(p)));
    dims.push_back(*p.dim());
  }
  const Tensors wholes = dims.empty() ? Tensors() : memory_->tensors();
  Gathering gathering{[] {}, writes_to_shards()};
  const CallOrigin origin(options_.name);
  const auto group = options_.data.group(options_.data.shard_axis);
  try {
    if (!kept_parts_.empty()) {
      gathering.finish = start_gather_chunks(std::exchange(kept_parts_, {}), wholes, dims, *part_group_);
    } else if (group) {
      gathering.finish = start_gather_chunks(chunks, wholes, dims, *group);
    }
  } catch (...) {
    if (memory_) memory_->give_back();
    throw;
  }
  for (std::size_t i = 0; !group && i < wholes.size(); ++i) {
    if (chunks[i].sizes() != wholes[i].sizes()) wholes[i].zero_();
    wholes[i].narrow(dims[i], 0, chunks[i].size(dims[i])).copy_(chunks[i]);
  }
  gathering_ = std::move(gathering);
}

void ParameterGroup::cancel_gather() {
  if (!gathering_) return;
  gathering_.reset();
  if (memory_) memory_->give_back();
}

void ParameterGroup::unshard(Form form) {
  const OrdinaryTensors mode;
  if (form_ == form && are_up_to_date()) return;
  reshard();
  cancel_gather_of_written();
  start_gather();
  try {
    const CallOrigin origin(options_.name);
    gathering_->finish();
  } catch (...) {
    cancel_gather();
    throw;
  }
  gathering_.reset();
  std::size_t next = 0;
  for (ShardedParameter& p : parameters_)
    p.show(form, p.dim() ? memory_->tensors()[next++] : p.shard().to(whole_type(p)));
  form_ = form;
}

void ParameterGroup::reshard() {
  if (form_ == Form::sharded) return;
  const OrdinaryTensors mode;
  for (ShardedParameter& p : parameters_) p.show_shard();
  form_ = Form::sharded;
  if (memory_) memory_->give_back();
}

void ParameterGroup::set_reshard_after_forward(ReshardAfterForward value) {
  const std::int64_t ranks = options_.data.shards();
  TORCH_CHECK_VALUE(value.ranks() >= 0 && (value.ranks() == 0 || ranks % value.ranks() == 0),
                    "meshtorch: reshard_after_forward = ", value.ranks(), " for ", ranks,
                    " ranks\n  of: ", options_.name,
                    "\n  do: give true, false, or a number of ranks that divides ", ranks);
  options_.reshard_after_forward = value;
  part_group_.reset();
  const std::int64_t part = value.ranks();
  const auto group = options_.data.group(options_.data.shard_axis);
  if (!group || part <= 1 || part == ranks) return;
  const auto first = group->ranks().begin() + options_.data.shard_index() / part * part;
  part_group_ = Group(std::vector<std::int64_t>(first, first + part));
}

void ParameterGroup::keep_parts() {
  if (!part_group_ || form_ == Form::sharded) return;
  const OrdinaryTensors mode;
  kept_parts_.clear();
  std::size_t next = 0;
  for (const ShardedParameter& p : parameters_) {
    if (!p.dim()) continue;
    const at::Tensor& whole = memory_->tensors()[next++];
    const Range mine = chunk(whole.size(*p.dim()), part_group_->size(), part_group_->rank());
    kept_parts_.push_back(whole.narrow(*p.dim(), mine.begin, mine.size).clone(at::MemoryFormat::Contiguous));
  }
}

void ParameterGroup::prefetch(const std::optional<std::vector<std::weak_ptr<ParameterGroup>>>& given,
                              const std::shared_ptr<ParameterGroup>& next) {
  std::vector<std::shared_ptr<ParameterGroup>> groups;
  if (!given) groups.push_back(next);
  for (const auto& group : given.value_or(std::vector<std::weak_ptr<ParameterGroup>>()))
    groups.push_back(group.lock());
  for (const auto& group : groups) {
    if (group == nullptr || group.get() == this || group->form_ != Form::sharded || group->gathering_)
      continue;
    group->start_gather();
    if (order_) order_->note_ahead(group);
  }
}

}  // namespace meshtorch::internal
