// Distributed tensors: real torch::Tensors whose shape is the global one and whose data is split over a mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/placement.h"

namespace meshtorch {

// What a distributed tensor is: where it lies, and its global shape.
struct MESHTORCH_API DTensorSpec {
  DeviceMesh mesh;
  Placements placements;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype;

  std::string to_string() const;
};

// What DTensor::from_local is told of shards, beside their placements.
struct FromLocalOptions {
  // Exchange sizes: finds the global shape of unequal shards, and refuses, on every rank, shards that do not
  // fit the placements or of which only some require gradients. Along axes that hold copies, the first rank's
  // tensor goes to all.
  bool run_check = false;
  // The global shape and strides. Without them shards are taken as equal, and nothing is communicated.
  std::optional<std::vector<std::int64_t>> shape = std::nullopt;
  std::optional<std::vector<std::int64_t>> stride = std::nullopt;
  // How the gradient is to lie. Default: like the tensor, replicated where it is a pending reduction.
  std::optional<Placements> grad_placements = std::nullopt;
};

// The placements of the gradient of to_local() and full_tensor().
struct ToLocalOptions {
  // How the gradient of the local tensor lies. Default: like the tensor, replicated where it is a pending
  // reduction.
  std::optional<Placements> grad_placements = std::nullopt;
};

// How a redistribution runs.
struct RedistributeOptions {
  // Return before the data is there; the first use waits.
  bool async_op = false;
  // Convert before communicating, forward and backward.
  std::optional<at::ScalarType> forward_dtype = std::nullopt;
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
};

// Returns whether the tensor is distributed; false for an undefined tensor.
MESHTORCH_API bool is_dtensor(const at::Tensor& tensor);

// A handle to a tensor that is distributed. It is the at::Tensor itself: there is no second object to keep in
// step.
class MESHTORCH_API DTensor : public at::Tensor {
 public:
  // Throws ValueError if the tensor is not distributed.
  DTensor(const at::Tensor& tensor);

  // The distributed tensor of which every rank gives its shard. Differentiable.
  static DTensor from_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                            const FromLocalOptions& options = {});
  // This rank's shard. Differentiable.
  at::Tensor to_local(const ToLocalOptions& options = {}) const;
  // The whole tensor, on every rank. Differentiable.
  at::Tensor full_tensor(const ToLocalOptions& options = {}) const;
  // The same tensor, lying as `placements` say. Differentiable.
  DTensor redistribute(const Placements& placements, const RedistributeOptions& options = {}) const;
  DTensor redistribute(const DeviceMesh& mesh, const Placements& placements,
                       const RedistributeOptions& options = {}) const;

  const Placements& placements() const;
  DeviceMesh device_mesh() const;
  DTensorSpec spec() const;
};

// The same of a torch::Tensor, for results of torch:: functions. Throw ValueError if it is not distributed.
inline at::Tensor to_local(const at::Tensor& tensor, const ToLocalOptions& options = {}) {
  return DTensor(tensor).to_local(options);
}
inline at::Tensor full_tensor(const at::Tensor& tensor, const ToLocalOptions& options = {}) {
  return DTensor(tensor).full_tensor(options);
}
inline DTensor redistribute(const at::Tensor& tensor, const Placements& placements,
                            const RedistributeOptions& options = {}) {
  return DTensor(tensor).redistribute(placements, options);
}
inline Placements placements(const at::Tensor& tensor) { return DTensor(tensor).placements(); }
inline DeviceMesh device_mesh(const at::Tensor& tensor) { return DTensor(tensor).device_mesh(); }

// Global shape, placements, mesh and this rank's shard.
MESHTORCH_API std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// Whose data distribute_tensor takes.
struct DistributeOptions {
  // The rank of each group, along each axis, whose data counts; the others' is ignored. None: every rank's
  // own data is taken as it is, and nothing is communicated.
  std::optional<int> src_data_rank = 0;
};

// Splits a tensor that every rank has in full. A leaf stays a leaf.
MESHTORCH_API DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh,
                                        const Placements& placements, const DistributeOptions& options = {});

// The steps, bytes and peak memory of a redistribution, without running it.
MESHTORCH_API std::string explain_redistribute(const DTensor& tensor, const Placements& placements);

// New distributed tensors; only the local shard is ever allocated.
MESHTORCH_API DTensor empty(const std::vector<std::int64_t>& size, const DeviceMesh& mesh,
                            const Placements& placements, const at::TensorOptions& options = {});
MESHTORCH_API DTensor zeros(const std::vector<std::int64_t>& size, const DeviceMesh& mesh,
                            const Placements& placements, const at::TensorOptions& options = {});
MESHTORCH_API DTensor ones(const std::vector<std::int64_t>& size, const DeviceMesh& mesh,
                           const Placements& placements, const at::TensorOptions& options = {});
MESHTORCH_API DTensor full(const std::vector<std::int64_t>& size, const at::Scalar& value,
                           const DeviceMesh& mesh, const Placements& placements,
                           const at::TensorOptions& options = {});
// 0 … end - 1.
MESHTORCH_API DTensor arange(std::int64_t end, const DeviceMesh& mesh, const Placements& placements,
                             const at::TensorOptions& options = {});
MESHTORCH_API DTensor eye(std::int64_t n, const DeviceMesh& mesh, const Placements& placements,
                          const at::TensorOptions& options = {});

}  // namespace meshtorch
