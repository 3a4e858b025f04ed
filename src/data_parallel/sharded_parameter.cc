// The forms of a parameter, and the gradients that come in each.
#include "data_parallel/sharded_parameter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "backends/pending.h"
#include "meshtorch/collectives.h"
#include "meshtorch/distribute_module.h"
#include "tensor/from_local.h"
#include "tensor/redistribute.h"
#include "tensor/replica_sample.h"
#include "transport/transport.h"

namespace meshtorch::internal {
namespace {

// Other data for the same tensor object. Unlike set_data it leaves the accumulator of gradients alone, whose
// type is that of the whole parameter.
void take_data(const at::Tensor& parameter, const at::Tensor& data) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

std::shared_ptr<MeshImpl> joined_mesh(const std::string& name, const std::shared_ptr<MeshImpl>& other,
                                      const DataMesh& data) {
  if (other == nullptr) return shared_impl_of(data.mesh);
  auto joined = other->joined_with(impl_of(data.mesh));
  const auto words = [&] {
    return c10::str("\n  parameter: ", name, "\n  its mesh: ", DeviceMesh(other).to_string(),
                    "\n  the mesh of batches: ", data.mesh.to_string());
  };
  TORCH_CHECK_VALUE(joined, "meshtorch: a parameter on one mesh cannot be data parallel over another",
                    words(),
                    "\n  do: take both from one mesh with names, as in mesh[\"dp\"] and mesh[\"tp\"]");
  TORCH_CHECK_VALUE(joined->shape().size() == other->shape().size() + data.mesh.shape().size(),
                    "meshtorch: a parameter is distributed over the axis of batches already", words(),
                    "\n  do: distribute it over other axes only, then call fully_shard or replicate");
  return joined;
}

// Where the axes of `part` stand in `mesh`.
std::vector<std::size_t> axes_in(const MeshImpl& mesh, const MeshImpl& part) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < part.shape().size(); ++axis) {
    axes.push_back(&mesh == &part ? axis : static_cast<std::size_t>(mesh.axis_named(part.names()[axis])));
  }
  return axes;
}

// The placement on axis `axis` that cuts what each rank of the other axes holds of `dim`: axes apply from
// left to right, so that a split by a later axis is passed over.
Placement cut_of_parts(std::int64_t dim, std::size_t axis, const Placements& placements, const Shape& mesh) {
  std::int64_t factor = 1;
  for (std::size_t later = axis + 1; later < placements.size(); ++later) {
    if (placements[later].is_shard(dim)) factor *= mesh[later];
  }
  return factor == 1 ? Shard(dim) : StridedShard(dim, factor);
}

// Whether every rank's shard is, by the layout, the chunk of what it holds on the other axes.
bool cuts_every_part(std::int64_t size, std::int64_t dim, std::size_t axis, const Layout& layout) {
  const Shape& mesh = layout.mesh->shape();
  Placements others = layout.placements;
  others[axis] = Replicate();
  Shape coordinate(mesh.size(), 0);
  for (;;) {
    const auto part = held_ranges(size, dim, others, mesh, coordinate);
    if (split(part, Shard(dim), mesh[axis], coordinate[axis]) !=
        held_ranges(size, dim, layout.placements, mesh, coordinate))
      return false;
    std::size_t next = mesh.size();
    while (next > 0 && ++coordinate[next - 1] == mesh[next - 1]) coordinate[--next] = 0;
    if (next == 0) return true;
  }
}

// A loss that was multiplied by a replicated number gives gradients that are distributed, of which each rank
// holds its own.
at::Tensor plain_part(const at::Tensor& gradient) {
  const DTensorMeta* meta = meta_of(gradient);
  if (meta == nullptr) return gradient;
  const Layout* whole = meta->mesh->layout(Placements(meta->mesh->shape().size()));
  const at::Tensor local = distributed(redistribute_tensor(gradient, whole, {}), "the gradient").local;
  wait_pending(local);
  return local;
}

// This rank's shard of what `source` has.
at::Tensor first_shard(at::Tensor whole, const DataMesh& data, const std::optional<std::int64_t>& dim,
                       const Range& mine, const std::optional<int>& source) {
  const bool sends = source && !whole.is_meta();
  const auto replicas = data.group(data.replicate_axis);
  if (sends && replicas) whole = wait_tensor(broadcast(whole, *source, *replicas));
  const auto shards = data.group(data.shard_axis);
  if (!dim) return sends && shards ? wait_tensor(broadcast(whole, *source, *shards)) : whole.clone();
  if (!sends || !shards) return whole.narrow(*dim, mine.begin, mine.size).clone(at::MemoryFormat::Contiguous);
  std::vector<at::Tensor> parts;
  for (std::int64_t r = 0; r < data.shards(); ++r) {
    const Range part = chunk(whole.size(*dim), data.shards(), r);
    parts.push_back(whole.narrow(*dim, part.begin, part.size));
  }
  return TransportOf(*shards, parts[0])->scatter(parts, *source);
}

}  // namespace

ShardedParameter::ShardedParameter(std::string name, at::Tensor parameter, const DataMesh& data,
                                   std::optional<std::int64_t> dim, std::optional<at::ScalarType> whole_type)
    : name_(std::move(name)), parameter_(std::move(parameter)), dim_(dim), whole_type_(whole_type) {
  const DTensorMeta* meta = meta_of(parameter_);
  if (meta != nullptr) {
    other_mesh_ = meta->mesh;
    other_layout_ = meta->layout;
    TORCH_CHECK_VALUE(!other_layout_->has_partial, "meshtorch: a parameter is a pending sum: ", name_,
                      "\n  placements: ", to_string(other_layout_->placements),
                      "\n  do: redistribute it to Replicate() or Shard() first");
  }
  TORCH_CHECK_VALUE(!parameter_.grad().defined(),
                    "meshtorch: a parameter has a gradient before it is sharded: ", name_,
                    "\n  do: call zero_grad() first");
  mesh_ = joined_mesh(name_, other_mesh_, data);
  data_axes_ = axes_in(*mesh_, impl_of(data.mesh));
  Placements placements(mesh_->shape().size());
  if (other_layout_ != nullptr) {
    const std::vector<std::size_t> axes = axes_in(*mesh_, *other_mesh_);
    for (std::size_t i = 0; i < axes.size(); ++i) placements[axes[i]] = other_layout_->placements[i];
  }
  distributed_layout_ = mesh_->layout(placements);
  whole_shape_ = (meta == nullptr ? parameter_ : meta->local).sizes().vec();
  if (dim_) {
    const std::size_t axis = data_axes_[*data.shard_axis];
    placements[axis] = cut_of_parts(*dim_, axis, placements, mesh_->shape());
    sharded_layout_ = mesh_->layout(placements);
    mine_ = chunk(whole_shape_[static_cast<std::size_t>(*dim_)], data.shards(), data.shard_index());
    TORCH_CHECK_NOT_IMPLEMENTED(
        placements[axis] == Shard(*dim_) ||
            cuts_every_part(parameter_.size(*dim_), *dim_, axis, *sharded_layout_),
        "meshtorch: two axes cannot split one dim so unevenly\n  parameter: ", name_, ", shape ",
        parameter_.sizes(), "\n  placements: ", to_string(placements), " on ", DeviceMesh(mesh_).to_string(),
        "\n  do: split another dim, by shard_placement_fn, or make the size a multiple of the ranks");
  } else {
    sharded_layout_ = distributed_layout_;
  }
}

void ShardedParameter::distribute(const DataMesh& data, std::optional<int> source) {
  const at::NoGradGuard no_grad;
  const DTensorMeta* meta = meta_of(parameter_);
  const at::Tensor whole = meta == nullptr ? parameter_.detach() : meta->local;
  wait_pending(whole);
  const at::Tensor sharded = wrap(first_shard(whole, data, dim_, mine_, source), sharded_layout_,
                                  parameter_.sizes(), dense_strides(parameter_.sizes()));
  declare_parameter_replica(distributed(sharded, "fully_shard"), name_, parameter_.sizes().vec());
  replace_data(parameter_, sharded);
}

void ShardedParameter::replace(const at::Tensor& by) {
  const DTensorMeta* meta = meta_of(by);
  TORCH_CHECK_VALUE(
      meta != nullptr && meta->mesh == mesh_ && by.sizes() == parameter_.sizes(),
      "meshtorch: a parameter of a group was replaced by one that does not fit\n  parameter: ", name_,
      ", shape ", parameter_.sizes(), ", on ", DeviceMesh(mesh_).to_string(), "\n  the new one: shape ",
      by.sizes(), meta == nullptr ? ", not distributed" : ", on " + DeviceMesh(meta->mesh).to_string(),
      "\n  do: make it of distributed tensors of the same mesh, or replace it before it is sharded");
  const at::NoGradGuard no_grad;
  if (meta->layout != sharded_layout_)
    replace_data(by, redistribute_tensor(by.detach(), sharded_layout_, {}));
  parameter_ = by;
}

at::Tensor ShardedParameter::shard() const {
  const at::Tensor& local = distributed(parameter_, "fully_shard").local;
  wait_pending(local);
  return local;
}

const Layout* ShardedParameter::layout_of(Form form) const {
  return form == Form::local ? other_layout_ : distributed_layout_;
}

void ShardedParameter::show(Form form, const at::Tensor& whole) {
  sharded_ = parameter_.variable_data();
  // With a version counter of its own: gathering again fills the same memory with the same values, which is
  // no write to views of it.
  whole_ = dim_ ? whole.variable_data() : whole;
  const Layout* layout = layout_of(form);
  take_data(parameter_, layout == nullptr
                            ? whole_
                            : wrap(whole_, layout, parameter_.sizes(), dense_strides(parameter_.sizes())));
  version_ = static_cast<std::uint32_t>(parameter_._version());
}

bool ShardedParameter::was_written() const {
  return static_cast<std::uint32_t>(parameter_._version()) != version_;
}

void ShardedParameter::show_shard() {
  const bool is_written = was_written();
  take_data(parameter_, sharded_);
  sharded_.reset();
  const at::Tensor whole = std::exchange(whole_, at::Tensor());
  const at::Tensor mine = shard();
  if (!is_written || whole.is_alias_of(mine)) return;
  mine.copy_(dim_ ? whole.narrow(*dim_, mine_.begin, mine_.size) : whole);
}

ShardedParameter::Term ShardedParameter::term_of(const at::Tensor& gradient, Form form) const {
  TORCH_CHECK_NOT_IMPLEMENTED(gradient.layout() == at::kStrided,
                              "meshtorch: a sparse gradient cannot be reduced over ranks\n  parameter: ",
                              name_, "\n  do: make it dense, such as by sparse(false) of an embedding");
  const Layout* wanted = layout_of(form);
  if (wanted == nullptr) return {plain_part(gradient), sharded_layout_};
  const DTensorMeta& meta = distributed(gradient, "the gradient of a data-parallel parameter");
  compare_assumed(meta.assumed);
  // Sums that pend on the other axes may wait until less is left to add up.
  const auto is_data_axis = [&](std::size_t axis) {
    return form == Form::distributed && std::ranges::find(data_axes_, axis) != data_axes_.end();
  };
  Placements placements = meta.layout->placements;
  bool is_term = meta.layout->mesh == wanted->mesh;
  for (std::size_t axis = 0; is_term && axis < placements.size(); ++axis) {
    const bool is_sum = placements[axis].is_partial(ReduceOp::sum);
    if (is_data_axis(axis) && !is_sum) is_term = false;
    if (!is_data_axis(axis) && !is_sum && placements[axis] != wanted->placements[axis]) is_term = false;
    if (is_sum && !wanted->placements[axis].is_replicate()) is_term = false;
  }
  if (!is_term && form == Form::distributed)
    return {redistribute_tensor(gradient, sharded_layout_, {}), nullptr};
  const at::Tensor term = is_term ? gradient : redistribute_tensor(gradient, wanted, {});
  const Placements& of_term = distributed(term, "the gradient").layout->placements;
  Placements result = sharded_layout_->placements;
  const std::vector<std::size_t> axes =
      form == Form::distributed ? std::vector<std::size_t>() : axes_in(*mesh_, *other_mesh_);
  for (std::size_t axis = 0; axis < of_term.size(); ++axis) {
    if (of_term[axis].is_partial() && !is_data_axis(axis))
      result[form == Form::distributed ? axis : axes[axis]] = of_term[axis];
  }
  const at::Tensor& local = distributed(term, "the gradient").local;
  wait_pending(local);
  return {local, mesh_->layout(result)};
}

}  // namespace meshtorch::internal
