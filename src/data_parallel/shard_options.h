// What users say of sharding, checked, for modules of either language.
#pragma once

#include <optional>
#include <string>

#include "data_parallel/parameter_group.h"
#include "meshtorch/api.h"
#include "meshtorch/replicate.h"

namespace meshtorch::internal {

// The mesh that fully_shard was given: one axis of shards, or one of copies before it.
MESHTORCH_FOR_PYTHON DataMesh shard_mesh(const DeviceMesh& mesh);

// Throws unless shards of such a mesh can lie in the memory of the CPU.
MESHTORCH_FOR_PYTHON void check_offload(const DeviceMesh& mesh);

// The dim of a parameter that is split: the given one, else the first; nothing for a parameter without dims.
MESHTORCH_FOR_PYTHON std::optional<std::int64_t> shard_dim(const std::string& name,
                                                           const at::Tensor& parameter,
                                                           const std::optional<Placement>& given);

// The group that replicate makes, after parameters and buffers were made equal.
MESHTORCH_FOR_PYTHON std::shared_ptr<ParameterGroup> replicated_group(
    const std::string& name, const std::vector<NamedParameter>& parameters,
    const std::vector<at::Tensor>& buffers, const DeviceMesh& mesh, const ReplicateOptions& options);

}  // namespace meshtorch::internal
