// The backends, one line each.
#include "backends/backend_traits.h"

#include <algorithm>
#include <array>

namespace meshtorch::internal {
namespace {

using Kind = BackendTraits::Kind;

constexpr std::array kBackends{
    BackendTraits{.kind = Kind::threads, .name = "threads", .ranks_are_threads = true, .needs_store = false},
    BackendTraits{.kind = Kind::shm, .name = "shm", .needs_one_host = true},
    BackendTraits{.kind = Kind::gloo, .name = "gloo", .tells_by_store = true},
    BackendTraits{.kind = Kind::fake, .name = "fake", .has_peers = false, .needs_store = false},
    BackendTraits{.kind = Kind::nccl, .name = "nccl", .device = c10::DeviceType::CUDA},
};
constexpr BackendTraits kOther{.name = "other"};

const BackendTraits* find_traits(std::string_view backend) {
  const auto* found = std::find_if(kBackends.begin(), kBackends.end(),
                                   [&](const BackendTraits& traits) { return traits.name == backend; });
  return found == kBackends.end() ? nullptr : found;
}

}  // namespace

const BackendTraits& traits_of(std::string_view backend) {
  const BackendTraits* found = find_traits(backend);
  return found != nullptr ? *found : kOther;
}

bool is_known_backend(std::string_view backend) { return find_traits(backend) != nullptr; }

std::string known_backends() {
  std::string text;
  for (const BackendTraits& traits : kBackends) {
    const char* separator = text.empty() ? "" : &traits == &kBackends.back() ? " or " : ", ";
    text.append(separator).append(traits.name);
  }
  return text;
}

}  // namespace meshtorch::internal
