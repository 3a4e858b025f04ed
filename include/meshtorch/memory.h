// What a rank keeps in memory, by what it is for: measured, or worked out for every rank of a mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/data_parallel.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace meshtorch {

class DeviceMesh;

// The bytes of one rank.
struct RankMemory {
  std::int64_t rank = 0;
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;  // kept for backward
  std::int64_t replicas = 0;     // parameters gathered for use
  std::optional<std::int64_t> measured_peak = std::nullopt;
};

// This rank's parameters, the gradients that they have now, and the state of the optimizer (one of
// LibTorch's).
MESHTORCH_API RankMemory memory_of(const torch::nn::Module& module,
                                   torch::optim::Optimizer* optimizer = nullptr);

// What every rank gives, on every rank, in their order. Every rank calls it.
MESHTORCH_API std::vector<RankMemory> gather_memory(const RankMemory& mine);

// What estimate_memory assumes of the training.
struct MemoryEstimate {
  // Of each parameter; AdamW keeps two numbers of its type.
  int optimizer_numbers = 2;
  // Of this rank; every rank gets it.
  std::int64_t activations = 0;
  // Ranks of larger meshes are a sample.
  std::int64_t most_ranks = 1024;
};
// What the ranks of the module's mesh keep when it is trained: gradients lie as the parameters do, and the
// two largest groups of fully_shard are whole at the same time. Nothing is communicated.
MESHTORCH_API std::vector<RankMemory> estimate_memory(const torch::nn::Module& module,
                                                      const MemoryEstimate& estimate = {});
MESHTORCH_API std::vector<RankMemory> estimate_memory(const std::vector<at::Tensor>& parameters,
                                                      const MemoryEstimate& estimate = {});

// How a module that is not distributed would be trained.
struct DataParallelEstimate {
  // The modules on which fully_shard would be called before the whole: patterns of names, whose parts are
  // those of fnmatch ("layers.*").
  std::vector<std::string> groups = {};
  // By replicate in place of fully_shard.
  bool is_replicated = false;
  MixedPrecisionPolicy mp_policy = {};
  MemoryEstimate memory = {};
};
// What the ranks of a mesh would keep if fully_shard, or replicate, were called on the module with it;
// `replicas` are the two largest groups. Nothing is changed or communicated; parameters may be on the meta
// device.
MESHTORCH_API std::vector<RankMemory> estimate_memory(const torch::nn::Module& module, const DeviceMesh& mesh,
                                                      const DataParallelEstimate& estimate = {});

namespace internal {
struct KeptMemoryState;
}  // namespace internal

// Watches the tensors that operators make on this rank while it lives: after a forward pass, those that are
// still held are what backward needs. Works on the meta device too. Watches nest.
class MESHTORCH_API KeptMemory {
 public:
  KeptMemory();
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // The memory of the tensors that are still held; what several share counts once.
  std::int64_t bytes() const;

 private:
  std::shared_ptr<internal::KeptMemoryState> state_;
};

// The most memory that tensors on the CPU have taken on this rank at one time, of what was allocated since it
// was made. It takes the place of LibTorch's profiler of memory, which sees nothing while it lives.
class MESHTORCH_API PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  std::int64_t bytes() const;
  // Forgets the peak; what is allocated stays counted.
  void restart();

 private:
  struct Meter;
  struct Guard;
  std::shared_ptr<Meter> meter_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace meshtorch
