// The `gloo` backend: LibTorch's ProcessGroupGloo, bound to the address that fits the rendezvous.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO 1  // the class is in libtorch_cpu even where only Gloo's headers are missing
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "comm/agreeing_backend.h"
#include "comm/backend.h"
#include "comm/rank_context.h"
#include "comm/waits.h"
#include "comm/watched_store.h"

namespace meshtorch::internal {
namespace {

// Ranks that meet on the loopback address also talk there: the host's own name may not resolve.
bool meets_on_loopback() {
  const char* address = std::getenv("MASTER_ADDR");
  if (address == nullptr) return false;
  const std::string_view host(address);
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Of a device that describes itself as "tcp, …, addr=[10.0.0.1]".
std::string address_of(const std::string& device) {
  constexpr std::string_view kBefore = "addr=[";
  const std::size_t begin = device.find(kBefore);
  if (begin == std::string::npos) return device;
  const std::string rest = device.substr(begin + kBefore.size());
  return rest.substr(0, rest.find(']'));
}

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options_of(const World& world) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(world.timeout);
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (meets_on_loopback()) {
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  }
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::vector<std::int64_t>& ranks, int rank) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  std::vector<int> others = members;
  std::erase(others, world.rank);
  const AtStore at_store(others, "gloo's connections between " + list_ranks(members));
  const auto options = options_of(world);
  const Connect connect = [&](const c10::intrusive_ptr<c10d::Store>& where, int number, int size) {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(where, number, size, options);
  };
  auto gloo = connect(store, rank, static_cast<int>(ranks.size()));
  return with_agreement(std::move(gloo), store, ranks, world, address_of(options->devices[0]->str()),
                        connect);
}

}  // namespace meshtorch::internal
