// Data parallelism that shards parameters, gradients and optimiser states.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/data_parallel.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/placement.h"

namespace at {
class Tensor;
}

namespace meshtorch {

// What a rank keeps of whole parameters between forward and backward: its shard (true), all (false), or its
// part of them over a number of neighbouring ranks, among which backward gathers them again.
class ReshardAfterForward {
 public:
  ReshardAfterForward(bool reshards) : ranks_(reshards ? 0 : 1) {}
  ReshardAfterForward(int ranks) : ranks_(ranks == 0 ? -1 : ranks) {}
  // 0: all ranks of the axis.
  std::int64_t ranks() const { return ranks_; }

 private:
  std::int64_t ranks_;
};

// Shards, gradients and optimiser states lie in the memory of the CPU. On a mesh of CPUs they do anyway;
// others refuse it.
struct CPUOffloadPolicy {
  bool pin_memory = true;  // for copies to a device; means nothing on a mesh of CPUs
};

// How fully_shard splits and gathers the parameters of a group.
struct FullyShardOptions {
  // Whether whole parameters are dropped after forward and gathered again before backward. Default: yes, but
  // for a module that holds others which were sharded before, since it is the last to run forward and the
  // first to run backward.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
  // The dim along which a parameter is split, by its name and itself; nothing: dim 0.
  std::function<std::optional<Placement>(const std::string& name, const at::Tensor& parameter)>
      shard_placement_fn = {};
  // The rank of each group whose values count at the start. None: every rank cuts its own, and nothing is
  // sent.
  std::optional<int> src_data_rank = 0;
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
};

// What can be asked of a module that was sharded. A handle; copies are cheap. It must not outlive the module.
class MESHTORCH_API FSDPModule {
 public:
  FSDPModule(torch::nn::Module& module, std::shared_ptr<internal::ParameterGroup> group);

  // Gathers the parameters of this group now, and drops them again.
  void unshard();
  void reshard();
  bool is_unsharded() const;
  // Begins to gather them; unshard() or the module's forward takes them.
  void start_unshard();
  // Whether backward reduces gradients; if not, each rank adds its own to those that it keeps.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true);
  // Whether it reduces them over the axis of copies (HSDP), too; if not, the sums over shards are kept and
  // added to those of the first backward that does.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true);
  void set_reshard_after_forward(ReshardAfterForward reshard_after_forward, bool recurse = true);
  // Whether parameters stay whole after backward, for another pass before the optimiser's step.
  void set_reshard_after_backward(bool reshard_after_backward, bool recurse = true);
  // Not needed where backward does not read the parameters, as of an embedding.
  void set_unshard_in_backward(bool unshard_in_backward);
  // Whether parameters that got no gradient on this rank count as zero, where ranks use different ones.
  void set_reduce_scatter_unused_params(bool reduce_scatter_unused_params, bool recurse = true);
  // What sums of gradients are divided by, in place of the number of ranks; of a batch that is distributed,
  // whose gradients are those of the whole, in place of 1.
  void set_gradient_divide_factor(double factor);
  // Whether averages are made of sums.
  void set_force_sum_reduction_for_comms(bool enable);
  // Called with this rank's shard of each gradient when it is reduced, which it may change in place.
  void set_all_reduce_hook(std::function<void(const at::Tensor&)> hook);
  // What is gathered while this module computes, after its own parameters are there. Default: the group that
  // ran next in the pass before, one ahead.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules);
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules);
  // After an exception in forward or backward: parameters are shards again, gradients that were not reduced
  // are gone.
  void reset_iter_state();

 private:
  std::vector<std::shared_ptr<internal::ParameterGroup>> groups(bool recurse) const;

  torch::nn::Module* module_;
  std::shared_ptr<internal::ParameterGroup> group_;
};

// Makes one group of the parameters of the module and of the modules below it, but for those that are in a
// group already: call it on the layers first, then on the whole model. Between steps each parameter is a
// DTensor, split along dim 0 over the mesh (of two axes: replicated over the first, split over the second),
// beside what parallelize_module made of it. One all-gather makes the group whole before the module's
// forward, and again before its backward; one reduce-scatter sums its gradients up.
//
// Plain batches: every rank brings its own, computes as if alone, and gradients are averaged. Distributed
// batches, on a mesh with the same axis, are one batch: gradients are those of the whole.
MESHTORCH_API FSDPModule fully_shard(torch::nn::Module& module, const DeviceMesh& mesh,
                                     const FullyShardOptions& options = {});

}  // namespace meshtorch
