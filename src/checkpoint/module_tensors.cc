// The tensors that are saved and loaded.
#include "checkpoint/module_tensors.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <map>

#include "backends/pending.h"
#include "data_parallel/parameter_group.h"
#include "dispatch/write_back.h"
#include "meshtorch/distribute_module.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::checkpoint::internal {

std::vector<ModuleTensor> tensors_of(torch::nn::Module& module) {
  // What is whole for a forward or backward pass is gathered again when that needs it.
  for (const auto& group : ParameterGroup::of(module.parameters())) group->reshard();
  std::vector<ModuleTensor> tensors;
  std::map<const c10::TensorImpl*, std::size_t> known;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [place, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), tensors.size());
    if (is_new) tensors.push_back({tensor, {}});
    tensors[place->second].names.push_back(name);
  };
  for (const auto& parameter : module.named_parameters()) add(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) add(buffer.key(), buffer.value());
  return tensors;
}

void check_whole(const at::Tensor& tensor, const std::string& name) {
  const DTensorMeta* meta = meta_of(tensor);
  TORCH_CHECK_VALUE(
      !meta || !meta->layout->has_partial, "meshtorch: tensor \"", name, "\" is a pending reduction, ",
      to_string(meta->layout->placements),
      ": no rank has its values\n  in: saving or loading it\n  do: redistribute it to Replicate() "
      "or Shard(dim) first");
}

Shards shards_of(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  if (meta) refresh(*meta, Reader::all_ranks);
  const at::Tensor local = (meta ? meta->local : tensor).detach();
  wait_pending(local);
  const Shape shape = tensor.sizes().vec();
  if (!meta) return {local, held_in_each_dim(shape, {}, {}, {})};
  return {local,
          held_in_each_dim(shape, meta->layout->placements, meta->mesh->shape(), coordinate_in(*meta->mesh))};
}

void fill_shards(const at::Tensor& tensor, const std::function<void(const Shards&)>& fill) {
  if (const DTensorMeta* meta = meta_of(tensor); meta && meta->local.is_meta()) {
    const at::TensorOptions options = meta->local.options().device(meta->mesh->device_type());
    const at::Tensor local = at::empty(meta->local.sizes(), options);
    replace_data(tensor, wrap(local, meta->layout, tensor.sizes(), tensor.strides()));
  } else if (!meta && tensor.is_meta()) {
    replace_data(tensor, at::empty(tensor.sizes(), tensor.options().device(at::kCPU)));
  }
  const Shards shards = shards_of(tensor);
  fill(shards);
  const DTensorMeta* meta = meta_of(tensor);
  if (!meta) return;
  note_write(meta->local);
  if (meta->write_back) write_through(tensor);
}

at::Tensor view_of(const at::Tensor& tensor, const Box& box) {
  at::Tensor view = tensor;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    view = view.narrow(static_cast<std::int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  return view;
}

}  // namespace meshtorch::checkpoint::internal
