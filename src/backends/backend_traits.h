// What the backends differ in. Whoever depends on it asks for the trait, not for the name.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace meshtorch::internal {

struct BackendTraits {
  enum class Kind : std::uint8_t { threads, shm, gloo, fake, nccl, other };
  Kind kind = Kind::other;
  std::string_view name;
  bool has_peers = true;           // false: the other ranks are imagined, and nothing comes from them
  bool ranks_are_threads = false;  // of one process
  bool needs_one_host = false;     // its ranks share memory
  bool needs_store = true;         // through which the ranks find each other
  bool tells_by_store = false;     // its ranks may share no memory, and leave there what the others must know
  c10::DeviceType device = c10::DeviceType::CPU;
};

// Of a backend that is not meshtorch's own, such as one of torch.distributed: as gloo's, by another name.
const BackendTraits& traits_of(std::string_view backend);
// "threads, shm, gloo, fake or nccl"
std::string known_backends();
bool is_known_backend(std::string_view backend);

}  // namespace meshtorch::internal
