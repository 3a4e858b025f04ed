// The tensors that the ranks write together, and what this rank holds of each.
#include "checkpoint/held_tensors.h"

#include <ATen/ATen.h>

#include "checkpoint/dtype.h"
#include "tensor/meta.h"
#include "tensor/redistribute.h"

namespace meshtorch::checkpoint::internal {
namespace {

at::Tensor reduced(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  if (!meta || !meta->layout->has_partial) return tensor;
  const at::NoGradGuard no_grad;
  return redistribute_tensor(tensor, meta->mesh->layout(gradient_placements(meta->layout->placements)), {});
}

// A rank outside a tensor's mesh has a stand-in that counts for nothing.
bool is_outside(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  return meta && !meta->mesh->coordinate();
}

}  // namespace

HeldTensors::HeldTensors(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = reduced(tensor);
    Held held{.dtype = safetensors::internal::dtype_name(tensor.scalar_type(), name),
              .shape = tensor.sizes().vec(),
              .shards = shards_of(whole)};
    TORCH_CHECK_VALUE(
        !held.shards.local.is_meta(), "meshtorch: tensor \"", name,
        "\" is on the meta device and has no values\n  in: saving it\n  do: give it values first");
    if (is_outside(whole)) held.shards.held.assign(std::max<std::size_t>(held.shape.size(), 1), {});
    TORCH_CHECK_VALUE(held_.emplace(name, std::move(held)).second, "meshtorch: two tensors have the name \"",
                      name, "\"\n  in: saving them\n  do: give each a name of its own");
    names_.push_back(name);
  }
}

Json HeldTensors::to_json() const {
  Json all = Json::array();
  for (const std::string& name : names_) {
    const Held& held = held_.at(name);
    Json boxes = Json::array();
    for (const Box& box : boxes_of(held.shards.held)) boxes.push_back(checkpoint::internal::to_json(box));
    all.push_back(
        {{"name", name}, {"dtype", held.dtype}, {"shape", held.shape}, {"boxes", std::move(boxes)}});
  }
  return all;
}

std::vector<Holding> holdings_from(const Json& json) {
  std::vector<Holding> holdings;
  for (const Json& item : json) {
    Holding& holding = holdings.emplace_back();
    item.at("name").get_to(holding.name);
    item.at("dtype").get_to(holding.dtype);
    item.at("shape").get_to(holding.shape);
    for (const Json& box : item.at("boxes")) holding.boxes.push_back(box_from(box));
  }
  return holdings;
}

at::Tensor HeldTensors::part(const std::string& name, const Box& box) const {
  const Shards& shards = held_.at(name).shards;
  return view_of(shards.local, overlap_of(shards.held, box).local);
}

}  // namespace meshtorch::checkpoint::internal
