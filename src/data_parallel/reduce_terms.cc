// Reducing gradients: scattered over the axis of shards, whole over the axis of copies.
#include "data_parallel/reduce_terms.h"

#include <ATen/ATen.h>

#include "comm/pending.h"

namespace meshtorch {
namespace {

// The terms that are split, and those that stay whole, by their places.
struct Places {
  std::vector<std::size_t> split;
  std::vector<std::size_t> whole;
};

Tensors taken(const std::vector<ReducedGradient>& gradients, const std::vector<std::size_t>& places) {
  Tensors tensors;
  for (const std::size_t i : places) tensors.push_back(gradients[i].local);
  return tensors;
}

void put(std::vector<ReducedGradient>& gradients, const std::vector<std::size_t>& places,
         const Tensors& tensors) {
  for (std::size_t i = 0; i < places.size(); ++i) gradients[places[i]].local = tensors[i];
}

void scatter(std::vector<ReducedGradient>& gradients, const std::vector<std::size_t>& places,
             const DataMesh& data, ReduceOp op) {
  if (places.empty()) return;
  Splits dims;
  for (const std::size_t i : places) dims.push_back(*gradients[i].parameter->dim());
  if (const auto group = data.group(data.shard_axis)) {
    put(gradients, places, reduce_scatter_tensor_coalesced(taken(gradients, places), op, dims, *group));
    return;
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    at::Tensor& local = gradients[places[i]].local;
    const Range mine = chunk(local.size(dims[i]), data.shards(), data.shard_index());
    local = local.narrow(dims[i], mine.begin, mine.size).contiguous();
  }
}

void reduce(std::vector<ReducedGradient>& gradients, const std::vector<std::size_t>& places,
            const std::optional<Group>& group, ReduceOp op) {
  if (places.empty() || !group) return;
  put(gradients, places, all_reduce_coalesced(taken(gradients, places), op, *group));
}

}  // namespace

std::vector<ReducedGradient> reduce_terms(const std::vector<const ShardedParameter*>& parameters,
                                          std::vector<ShardedParameter::Term> terms, const DataMesh& data,
                                          const TermReduction& reduction) {
  const at::NoGradGuard no_grad;
  std::vector<ReducedGradient> gradients;
  Places places;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    at::Tensor& local = terms[i].local;
    const bool is_term = terms[i].layout != nullptr;
    if (is_term && reduction.type) local = local.to(*reduction.type);
    gradients.push_back({parameters[i], std::move(local), terms[i].layout});
    if (is_term) (parameters[i]->dim() ? places.split : places.whole).push_back(i);
  }
  scatter(gradients, places.split, data, reduction.op);
  reduce(gradients, places.whole, data.group(data.shard_axis), reduction.op);
  std::vector<std::size_t> all = places.split;
  all.insert(all.end(), places.whole.begin(), places.whole.end());
  reduce(gradients, all, data.group(data.replicate_axis), reduction.op);
  return gradients;
}

at::Tensor arrived(const ReducedGradient& gradient) {
  wait_pending(gradient.local);
  const at::Tensor& parameter = gradient.parameter->tensor();
  const at::Tensor local = gradient.local.to(parameter.scalar_type());
  if (gradient.layout == nullptr) return local;
  return wrap(local, gradient.layout, parameter.sizes(), dense_strides(parameter.sizes()));
}

}  // namespace meshtorch
