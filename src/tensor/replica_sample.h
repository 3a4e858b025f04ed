// What a tensor holds alike on several ranks, shown in parts to the groups that compare it.
#pragma once

#include <string>

#include "core/shard.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

// Says that the ranks along the axes that are called Replicate hold equal values in a new tensor of this
// global shape. Their next collective compares a sample of it. From the first time on that an operator reads
// it, every few collectives compare a part of it, as long as it, or a tensor that was detached from it,
// lives. Nothing is compared below the level of agreement `on`.
void declare_replica(DTensorMeta& tensor, const Shape& shape);

// Says the same of a parameter that may still be brought to the other ranks, such as by a checkpoint: nothing
// is compared with the next collective. The name is for errors.
void declare_parameter_replica(DTensorMeta& tensor, const std::string& name, const Shape& shape);

}  // namespace meshtorch::internal
