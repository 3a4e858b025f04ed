// Making LibTorch process groups on each of the backends.
#include "backends/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "agreement/shm_membership.h"
#include "backends/backend_traits.h"
#include "backends/memory_backend.h"
#include "backends/world.h"

namespace meshtorch::internal {
namespace {

std::string group_name(const std::vector<std::int64_t>& ranks) {
  std::string name = "ranks";
  for (const std::int64_t rank : ranks) name.append(name == "ranks" ? " " : ",").append(std::to_string(rank));
  return name;
}

c10::intrusive_ptr<c10d::Backend> make_threads_backend(const World& world,
                                                       const std::vector<std::int64_t>& ranks, int rank) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  auto exchange =
      std::make_unique<MemoryExchange>(world.threads->meeting(members, rank), rank, /*reads_peers=*/true);
  return c10::make_intrusive<MemoryBackend>("threads", std::move(exchange), world.threads, world.timeout);
}

// Large enough that many ranks on few cores meet seldom, small enough to stay in the caches.
constexpr std::size_t kProcessStage = std::size_t{512} << 10;

c10::intrusive_ptr<c10d::Backend> make_backend(const World& world, BackendTraits::Kind kind,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::vector<std::int64_t>& ranks, int rank) {
  const int size = static_cast<int>(ranks.size());
  using Kind = BackendTraits::Kind;
  switch (kind) {
    case Kind::threads:
      return make_threads_backend(world, ranks, rank);
    case Kind::shm:
      return make_shm_backend(*store, ranks, rank, world.size, world.timeout);
    case Kind::fake:
      return make_fake_backend(rank, size);
    case Kind::gloo:
      return make_gloo_backend(world, store, ranks, rank);
    case Kind::nccl:
      return make_nccl_backend(world, store, rank, size);
    case Kind::other:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "no backend of meshtorch is called ", world.backend);
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const World& world,
                                                          const std::vector<std::int64_t>& ranks, int rank) {
  using c10d::ProcessGroup;
  const int size = static_cast<int>(ranks.size());
  const std::string name = group_name(ranks);
  c10::intrusive_ptr<c10d::Store> store;
  if (world.store) store = c10::make_intrusive<c10d::PrefixStore>(name, world.store);

  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  const auto type = ProcessGroup::strToBackendType(world.backend);
  const BackendTraits& traits = traits_of(world.backend);
  const auto backend = make_backend(world, traits.kind, store, ranks, rank);
  group->setBackend(traits.device, type, backend);
  if (!traits.has_peers) group->setBackend(c10::DeviceType::CUDA, type, backend);  // no device is needed
  group->setDefaultBackend(type);
  group->setGroupName(name);
  return group;
}

c10::intrusive_ptr<c10d::Backend> make_shm_backend(c10d::Store& store, const std::vector<std::int64_t>& ranks,
                                                   int rank, int ranks_on_host,
                                                   std::chrono::milliseconds timeout) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  const auto membership = std::make_shared<HostMembership>(store, members, rank, kProcessStage);
  auto exchange =
      std::make_unique<MemoryExchange>(membership->meeting(ranks_on_host), rank, /*reads_peers=*/false);
  auto backend = c10::make_intrusive<MemoryBackend>("shm", std::move(exchange), membership, timeout);
  backend->on_shutdown([membership] { membership->leave(); });
  return backend;
}

MemoryBackend* memory_backend_of(c10d::ProcessGroup& group) {
  if (group.getBackendType() != c10d::ProcessGroup::BackendType::CUSTOM) return nullptr;
  return dynamic_cast<MemoryBackend*>(group.getBackend(c10::DeviceType::CPU).get());
}

void check_backend(const std::string& backend) {
  TORCH_CHECK_VALUE(is_known_backend(backend), "meshtorch: unknown backend \"", backend, "\"\n  do: use ",
                    known_backends());
  if (traits_of(backend).kind == BackendTraits::Kind::nccl) check_nccl();
}

}  // namespace meshtorch::internal
