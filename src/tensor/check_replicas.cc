// Comparing local tensors that should be equal, by hashes of their bytes.
#include "tensor/check_replicas.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "backends/pending.h"
#include "mesh/mesh_impl.h"
#include "meshtorch/check_replicas.h"
#include "meshtorch/collectives.h"
#include "runtime/host_tensor.h"
#include "signature/call_hash.h"
#include "tensor/meta.h"

namespace meshtorch {
using namespace internal;
namespace {

thread_local int replica_checks = 0;

std::int64_t hash_of(const at::Tensor& local) {
  wait_pending(local);
  const at::Tensor plain = local.detach().resolve_conj().resolve_neg().cpu().contiguous();
  CallHash hash;
  for (const std::int64_t size : plain.sizes()) hash.add(static_cast<std::uint64_t>(size));
  hash.add(std::string_view(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()));
  return static_cast<std::int64_t>(hash.short_form());
}

// Empty if they are equal, or there is nothing to compare.
std::string difference(const at::Tensor& local, const Layout& layout, const std::string& what) {
  const MeshImpl& mesh = *layout.mesh;
  std::vector<int> axes;
  std::string names;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (!layout.placements[axis].is_replicate() || mesh.shape()[axis] == 1) continue;
    axes.push_back(static_cast<int>(axis));
    names +=
        c10::str(names.empty() ? "" : ", ", mesh.names().empty() ? std::to_string(axis) : mesh.names()[axis]);
  }
  if (axes.empty() || !mesh.coordinate() || local.is_meta()) return {};
  const Group group = mesh.group(axes);
  const at::Tensor hashes =
      wait_tensor(all_gather_tensor(at::full({1}, hash_of(local), on_host(at::kLong)), 0, group));
  std::map<std::int64_t, std::vector<std::int64_t>> holders;
  for (std::int64_t r = 0; r < hashes.numel(); ++r)
    holders[hashes[r].item<std::int64_t>()].push_back(group.ranks()[static_cast<std::size_t>(r)]);
  if (holders.size() == 1) return {};
  std::vector<std::vector<std::int64_t>> parties;
  for (auto& [hash, ranks] : holders) parties.push_back(std::move(ranks));
  std::sort(parties.begin(), parties.end());
  std::string text = c10::str(what, ", ", c10::toString(local.scalar_type()), local.sizes(), " under ",
                              to_string(layout.placements), ", is not equal on the ranks along ", names);
  for (const auto& ranks : parties)
    text += c10::str("\n  equal among themselves: ranks ", c10::IntArrayRef(ranks));
  return text;
}

[[noreturn]] void throw_difference(const std::string& text) {
  TORCH_CHECK_VALUE(
      false, "meshtorch: ", text,
      "\n  do: give equal data to all ranks (one seed, one file, broadcast), or call it Partial or "
      "Shard if that is what it is");
}

}  // namespace

bool internal::replicas_are_checked() { return replica_checks > 0; }

void internal::check_equal_replicas(const at::Tensor& local, const Layout& layout, const std::string& what) {
  if (const std::string text = difference(local, layout, what); !text.empty()) throw_difference(text);
}

void check_replicas(const at::Tensor& tensor, const std::string& what) {
  const DTensorMeta* meta = tensor.defined() ? meta_of(tensor) : nullptr;
  if (meta == nullptr) return;
  refresh(*meta, Reader::all_ranks);
  check_equal_replicas(meta->local, *meta->layout, what);
}

void check_replicas(const torch::nn::Module& module) {
  std::string all;  // ranks that hold equal ones go on, so that nobody waits for one that has thrown
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    const DTensorMeta* meta = tensor.defined() ? meta_of(tensor) : nullptr;
    if (meta == nullptr) return;
    refresh(*meta, Reader::all_ranks);
    const std::string text = difference(meta->local, *meta->layout, name);
    if (!text.empty()) all += (all.empty() ? "" : "\n") + text;
  };
  for (const auto& named : module.named_parameters()) check(named.key(), named.value());
  for (const auto& named : module.named_buffers()) check(named.key(), named.value());
  if (!all.empty()) throw_difference(all);
}

CheckReplicas::CheckReplicas() { ++replica_checks; }
CheckReplicas::~CheckReplicas() { --replica_checks; }

}  // namespace meshtorch
