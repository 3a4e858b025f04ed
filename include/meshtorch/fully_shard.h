// Data parallelism that shards parameters, gradients and optimiser states.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "meshtorch/data_parallel.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/placement.h"

namespace at {
class Tensor;
}

namespace meshtorch {

struct FullyShardOptions {
  // Whether whole parameters are dropped after forward and gathered again before backward. Default: yes, but
  // for a module that holds others which were sharded before, since it is the last to run forward and the
  // first to run backward.
  std::optional<bool> reshard_after_forward = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
  // The dim along which a parameter is split, by its name and itself; nothing: dim 0.
  std::function<std::optional<Placement>(const std::string& name, const at::Tensor& parameter)>
      shard_placement_fn = {};
  // The rank of each group whose values count at the start. None: every rank cuts its own, and nothing is
  // sent.
  std::optional<int> src_data_rank = 0;
};

// What can be asked of a module that was sharded. A handle; copies are cheap. It must not outlive the module.
class FSDPModule {
 public:
  FSDPModule(torch::nn::Module& module, std::shared_ptr<ParameterGroup> group);

  // Gathers the parameters of this group now, and drops them again.
  void unshard();
  void reshard();
  bool is_unsharded() const;
  // Whether backward reduces gradients; if not, each rank adds its own to those that it keeps.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true);
  void set_reshard_after_forward(bool reshard_after_forward, bool recurse = true);

 private:
  std::vector<std::shared_ptr<ParameterGroup>> groups(bool recurse) const;

  torch::nn::Module* module_;
  std::shared_ptr<ParameterGroup> group_;
};

// Makes one group of the parameters of the module and of the modules below it, but for those that are in a
// group already: call it on the layers first, then on the whole model. Between steps each parameter is a
// DTensor, split along dim 0 over the mesh (of two axes: replicated over the first, split over the second),
// beside what parallelize_module made of it. One all-gather makes the group whole before the module's
// forward, and again before its backward; one reduce-scatter sums its gradients up.
//
// Plain batches: every rank brings its own, computes as if alone, and gradients are averaged. Distributed
// batches, on a mesh with the same axis, are one batch: gradients are those of the whole.
FSDPModule fully_shard(torch::nn::Module& module, const DeviceMesh& mesh,
                       const FullyShardOptions& options = {});

}  // namespace meshtorch
