// Reducing gradients: scattered over the axis of shards, whole over the axis of copies.
#include "data_parallel/reduce_terms.h"

#include <ATen/ATen.h>

#include "backends/pending.h"
#include "collectives/chunks.h"

namespace meshtorch::internal {
namespace {

using Gradients = std::vector<ReducedGradient>;
using Places = std::vector<std::size_t>;

Tensors taken(const Gradients& gradients, const Places& places) {
  Tensors tensors;
  for (const std::size_t i : places) tensors.push_back(gradients[i].local);
  return tensors;
}

void put(Gradients& gradients, const Places& places, const Tensors& tensors) {
  for (std::size_t i = 0; i < places.size(); ++i) gradients[places[i]].local = tensors[i];
}

// This rank's parts, where there is nobody to add up with.
Tensors cut(const Tensors& tensors, const Splits& dims, const DataMesh& data) {
  Tensors parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Range mine = chunk(tensors[i].size(dims[i]), data.shards(), data.shard_index());
    parts.push_back(tensors[i].narrow(dims[i], mine.begin, mine.size).contiguous());
  }
  return parts;
}

std::function<Tensors()> start_scatter(const Gradients& gradients, const Places& places, const DataMesh& data,
                                       ReduceOp op) {
  Splits dims;
  for (const std::size_t i : places) dims.push_back(*gradients[i].parameter->dim());
  if (const auto group = data.group(data.shard_axis))
    return start_reduce_chunks(taken(gradients, places), op, dims, *group);
  return [parts = cut(taken(gradients, places), dims, data)] { return parts; };
}

void reduce(Gradients& gradients, const Places& places, const std::optional<Group>& group, ReduceOp op) {
  if (places.empty() || !group) return;
  put(gradients, places, all_reduce_coalesced(taken(gradients, places), op, *group));
}

void divide(Gradients& gradients, double divisor) {
  if (divisor == 1) return;
  for (ReducedGradient& gradient : gradients) gradient.local = gradient.local.div(divisor);
}

}  // namespace

std::function<std::vector<ReducedGradient>()> start_reduce_terms(
    const std::vector<const ShardedParameter*>& parameters, std::vector<ShardedParameter::Term> terms,
    const DataMesh& data, const TermReduction& reduction) {
  const at::NoGradGuard no_grad;
  Gradients gradients;
  Places split;
  Places whole;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    at::Tensor& local = terms[i].local;
    const bool is_term = terms[i].layout != nullptr;
    if (is_term && reduction.type) local = local.to(*reduction.type);
    gradients.push_back({parameters[i], std::move(local), terms[i].layout});
    if (is_term) (parameters[i]->dim() ? split : whole).push_back(i);
  }
  terms.clear();
  const auto scattered = start_scatter(gradients, split, data, reduction.op);
  for (const std::size_t i : split) gradients[i].local.reset();
  reduce(gradients, whole, data.group(data.shard_axis), reduction.op);
  const auto copies = reduction.over_copies ? data.group(data.replicate_axis) : std::nullopt;
  Places all = split;
  all.insert(all.end(), whole.begin(), whole.end());
  // Without anything to wait for, it begins at once.
  std::function<Tensors()> copied;
  if (split.empty() && copies && !reduction.before_copies) {
    copied = start_reduce_wholes(taken(gradients, all), reduction.op, *copies);
    for (const std::size_t i : all) gradients[i].local.reset();
  }
  return [=]() mutable {
    const at::NoGradGuard without_graph;
    put(gradients, split, scattered());
    if (reduction.before_copies) reduction.before_copies(gradients);
    if (copied) {
      put(gradients, all, copied());
    } else {
      reduce(gradients, all, copies, reduction.op);
    }
    divide(gradients, reduction.divisor);
    return std::move(gradients);
  };
}

at::Tensor arrived(const ReducedGradient& gradient) {
  wait_pending(gradient.local);
  const at::Tensor& parameter = gradient.parameter->tensor();
  const at::Tensor local = gradient.local.to(parameter.scalar_type());
  if (gradient.layout == nullptr) return local;
  return wrap(local, gradient.layout, parameter.sizes(), dense_strides(parameter.sizes()));
}

}  // namespace meshtorch::internal
