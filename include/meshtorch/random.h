// Random distributed tensors: the same numbers for any mesh, placement and number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/dtensor.h"

namespace meshtorch {

// The seed of a rank that has not called manual_seed.
inline constexpr std::uint64_t kDefaultSeed = 67280421310721;

// Where a rank's random numbers stand. Every random call on a distributed tensor takes the next call number.
struct MESHTORCH_API RngState {
  std::uint64_t seed = kDefaultSeed;
  std::uint64_t call = 0;

  // As 16 bytes, for checkpoints.
  at::Tensor to_tensor() const;
  static RngState from_tensor(const at::Tensor& bytes);

  friend bool operator==(const RngState&, const RngState&) = default;
};

// Starts the random numbers of this rank again, from call 0. All ranks must pass the same seed. On a thread
// that is no rank: where ranks that join later start. Plain tensors have torch's own generator, which this
// leaves alone.
MESHTORCH_API void manual_seed(std::uint64_t seed);
MESHTORCH_API RngState get_rng_state();
MESHTORCH_API void set_rng_state(const RngState& state);

// Uniform in [0, 1).
MESHTORCH_API DTensor rand(const std::vector<std::int64_t>& size, const DeviceMesh& mesh,
                           const Placements& placements, const at::TensorOptions& options = {});
// Normal, with mean 0 and variance 1.
MESHTORCH_API DTensor randn(const std::vector<std::int64_t>& size, const DeviceMesh& mesh,
                            const Placements& placements, const at::TensorOptions& options = {});
// Integers in [low, high), of type long unless the options say otherwise.
MESHTORCH_API DTensor randint(std::int64_t low, std::int64_t high, const std::vector<std::int64_t>& size,
                              const DeviceMesh& mesh, const Placements& placements,
                              const at::TensorOptions& options = {});
MESHTORCH_API DTensor randint(std::int64_t high, const std::vector<std::int64_t>& size,
                              const DeviceMesh& mesh, const Placements& placements,
                              const at::TensorOptions& options = {});
// A permutation of 0 … n - 1. Every rank makes all of it.
MESHTORCH_API DTensor randperm(std::int64_t n, const DeviceMesh& mesh, const Placements& placements,
                               const at::TensorOptions& options = {});

}  // namespace meshtorch
