// The choice between the two ways on which tensors move.
#include "transport/transport.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "backends/backend.h"
#include "backends/wire.h"
#include "kernels/parts.h"

namespace meshtorch::internal {
namespace {

std::variant<PackedTransport, SharedMemoryTransport> way_of(const Group& group, bool is_on_host) {
  MemoryBackend* memory = memory_backend_of(*group.process_group());
  if (memory != nullptr && is_on_host) return SharedMemoryTransport(group, *memory);
  return PackedTransport(group);
}

}  // namespace

TransportOf::TransportOf(const Group& group, const at::Tensor& like) : way_(way_of(group, like.is_cpu())) {}
TransportOf::TransportOf(const Group& group, c10::Device device) : way_(way_of(group, device.is_cpu())) {}

Splits gather_sizes(const at::Tensor& t, std::int64_t dim, const Group& group, const Splits& sizes) {
  const auto count = static_cast<std::size_t>(group.size());
  if (sizes.empty()) return Splits(count, t.size(dim));
  TORCH_CHECK_VALUE(sizes.size() == count, "meshtorch: all_gather_tensor over ", count, " ranks got ",
                    sizes.size(), " sizes\n  do: give the size of every rank's tensor along dim ", dim,
                    ", or none if they are equal");
  const std::int64_t mine = sizes[static_cast<std::size_t>(group.rank())];
  TORCH_CHECK_VALUE(mine == t.size(dim), "meshtorch: all_gather_tensor: sizes say that rank ", group.rank(),
                    " has ", mine, " along dim ", dim, ", but its tensor is ", t.sizes(),
                    "\n  do: give the same true sizes on every rank");
  return sizes;
}

// Parts travel flat, padded to the largest, since backends want them of one size.
at::Tensor Transport::scatter(const Tensors& parts, int source) const {
  const at::Tensor& mine = parts[static_cast<std::size_t>(group_.rank())];
  std::int64_t largest = 0;
  for (const at::Tensor& part : parts) largest = std::max(largest, part.numel());
  if (largest == 0 || group_.size() == 1) return mine.clone(at::MemoryFormat::Contiguous);

  std::vector<Tensors> sent;
  if (group_.rank() == source) {
    sent.emplace_back();
    for (const at::Tensor& part : parts)
      sent[0].push_back(as_cargo(readable(padded(part.reshape({-1}), 0, largest))));
  }
  Tensors received{as_cargo(at::empty({largest}, mine.options()))};
  scatter_into(received, sent, source);
  const at::Tensor flat = from_wire_bytes(received[0], mine.scalar_type()).narrow(0, 0, mine.numel());
  return largest == mine.numel() ? flat.view(mine.sizes()) : flat.clone().view(mine.sizes());
}

}  // namespace meshtorch::internal
