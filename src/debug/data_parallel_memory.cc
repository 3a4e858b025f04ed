// What data parallelism would make of a module, worked out from shapes alone.
#include <ATen/core/Tensor.h>
#include <fnmatch.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "debug/data_parallel_memory.h"

#include "data_parallel/shard_options.h"
#include "meshtorch/memory.h"

namespace meshtorch {
using namespace internal;
namespace {

bool matches(std::string pattern, std::string name) {
  std::ranges::replace(pattern, '.', '/');
  std::ranges::replace(name, '.', '/');
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PATHNAME | FNM_NOESCAPE) == 0;
}

// The longest beginning of a parameter's name, part by part, that one of the patterns matches; else nothing.
std::string group_of(const std::string& parameter, const std::vector<std::string>& patterns) {
  for (std::size_t end = parameter.rfind('.'); end != std::string::npos && end > 0;
       end = parameter.rfind('.', end - 1)) {
    const std::string module = parameter.substr(0, end);
    if (std::ranges::any_of(patterns, [&](const std::string& p) { return matches(p, module); }))
      return module;
  }
  return {};
}

std::int64_t bytes_of(std::int64_t elements, at::ScalarType type) {
  return elements * static_cast<std::int64_t>(c10::elementSize(type));
}

}  // namespace

std::int64_t internal::largest_two(std::vector<std::int64_t> groups) {
  std::ranges::sort(groups, std::greater());
  groups.resize(2);
  return groups[0] + groups[1];
}

std::vector<RankMemory> estimate_memory(const torch::nn::Module& module, const DeviceMesh& mesh,
                                        const DataParallelEstimate& estimate) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  return estimate_data_parallel(parameters, mesh, estimate);
}

std::vector<RankMemory> internal::estimate_data_parallel(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters, const DeviceMesh& mesh,
    const DataParallelEstimate& estimate) {
  const DataMesh data = estimate.is_replicated ? DataMesh{mesh, 0, std::nullopt} : shard_mesh(mesh);
  const std::int64_t ranks = data.shards();
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks));
  std::map<std::string, std::int64_t> groups;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, p] : parameters) {
    if (!p.defined() || !seen.insert(p.unsafeGetTensorImpl()).second) continue;
    const bool is_split = !estimate.is_replicated && p.dim() > 0;
    const std::int64_t row = is_split && p.size(0) > 0 ? p.numel() / p.size(0) : p.numel();
    for (std::int64_t r = 0; r < ranks; ++r)
      bytes[static_cast<std::size_t>(r)] +=
          bytes_of(is_split ? chunk(p.size(0), ranks, r).size * row : p.numel(), p.scalar_type());
    if (!is_split) continue;
    const auto& type = estimate.mp_policy.param_dtype;
    groups[group_of(name, estimate.groups)] +=
        bytes_of(p.numel(), type && p.is_floating_point() ? *type : p.scalar_type());
  }
  std::vector<std::int64_t> wholes;
  for (const auto& [module, whole] : groups) wholes.push_back(whole);
  const auto& members = impl_of(mesh).ranks();
  const auto size = static_cast<std::int64_t>(members.size());
  const std::int64_t most = std::max<std::int64_t>(estimate.memory.most_ranks, 1);
  std::vector<RankMemory> result;
  for (std::int64_t member = 0; member < size; member += (size + most - 1) / most) {
    const std::int64_t mine = bytes[static_cast<std::size_t>(member % ranks)];  // shards are the last axis
    result.push_back({.rank = members[static_cast<std::size_t>(member)],
                      .parameters = mine,
                      .gradients = mine,
                      .optimizer = estimate.memory.optimizer_numbers * mine,
                      .activations = estimate.memory.activations,
                      .replicas = largest_two(wholes)});
  }
  return result;
}

}  // namespace meshtorch
