// One c10d scatter: parts travel flat, padded to the largest, since backends want them of one size.
#include "comm/scatter.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "comm/parts.h"
#include "comm/wire.h"

namespace meshtorch::internal {

at::Tensor scatter_parts(const std::vector<at::Tensor>& parts, int source, const Group& group) {
  const at::Tensor& mine = parts[static_cast<std::size_t>(group.rank())];
  std::int64_t largest = 0;
  for (const at::Tensor& part : parts) largest = std::max(largest, part.numel());
  if (largest == 0 || group.size() == 1) return mine.clone(at::MemoryFormat::Contiguous);

  std::vector<std::vector<at::Tensor>> sent;
  if (group.rank() == source) {
    sent.emplace_back();
    for (const at::Tensor& part : parts)
      sent[0].push_back(as_cargo(readable(padded(part.reshape({-1}), 0, largest))));
  }
  std::vector<at::Tensor> received{as_cargo(at::empty({largest}, mine.options()))};
  c10d::ScatterOptions options;
  options.rootRank = source;
  group.process_group()->scatter(received, sent, options)->wait();
  const at::Tensor flat = from_cargo(received[0], mine.scalar_type()).narrow(0, 0, mine.numel());
  return largest == mine.numel() ? flat.view(mine.sizes()) : flat.clone().view(mine.sizes());
}

}  // namespace meshtorch::internal
