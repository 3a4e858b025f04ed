// Making LibTorch process groups on each of the backends.
#include "comm/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/rank_context.h"
#include "comm/threads_backend.h"

namespace meshtorch {
namespace {

std::string group_name(const std::vector<std::int64_t>& ranks) {
  std::string name = "ranks";
  for (const std::int64_t rank : ranks) name.append(name == "ranks" ? " " : ",").append(std::to_string(rank));
  return name;
}

c10::intrusive_ptr<c10d::Backend> make_threads_backend(const World& world,
                                                       const std::vector<std::int64_t>& ranks, int rank) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  return c10::make_intrusive<ThreadsBackend>(world.threads, world.threads->meeting(members), rank,
                                             world.timeout);
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
  c10::intrusive_ptr<c10d::Backend> backend;
  if (world.backend == "threads") {
    backend = make_threads_backend(world, ranks, rank);
  } else if (world.backend == "fake") {
    backend = make_fake_backend(rank, size);
  } else if (world.backend == "gloo") {
    backend = make_gloo_backend(world, store, rank, size);
  } else {
    backend = make_nccl_backend(world, store, rank, size);
  }
  group->setBackend(world.backend == "nccl" ? c10::DeviceType::CUDA : c10::DeviceType::CPU, type, backend);
  if (world.backend == "fake") group->setBackend(c10::DeviceType::CUDA, type, backend);
  group->setDefaultBackend(type);
  group->setGroupName(name);
  return group;
}

void check_backend(const std::string& backend) {
  const bool is_known = backend == "threads" || backend == "gloo" || backend == "fake" || backend == "nccl";
  TORCH_CHECK_VALUE(is_known, "meshtorch: unknown backend \"", backend,
                    "\"\n  do: use threads, gloo, fake or nccl");
#ifndef USE_C10D_NCCL
  TORCH_CHECK_NOT_IMPLEMENTED(
      backend != "nccl",
      "meshtorch: backend nccl needs a LibTorch built with CUDA, and this one is not\n  do: use "
      "gloo, or install the CUDA build of LibTorch");
#endif
}

}  // namespace meshtorch
