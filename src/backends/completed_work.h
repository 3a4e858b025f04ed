// A c10d::Work that was over before it was returned.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace meshtorch::internal {

c10::intrusive_ptr<c10d::Work> completed_work(int rank, std::vector<at::Tensor> results);

}  // namespace meshtorch::internal
