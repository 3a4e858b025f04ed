// The `gloo` backend: LibTorch's ProcessGroupGloo, bound to the address that fits the rendezvous.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO 1  // the class is in libtorch_cpu even where only Gloo's headers are missing
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "backends/agreeing_backend.h"
#include "backends/backend.h"
#include "backends/world.h"
#include "liveness/waits.h"
#include "liveness/watched_store.h"

namespace meshtorch::internal {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// Ranks that meet on the loopback address also talk there: the host's own name may not resolve.
bool meets_on_loopback() {
  const char* address = std::getenv("MASTER_ADDR");
  if (address == nullptr) return false;
  const std::string_view host(address);
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string text_of(const sockaddr& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : std::string();
}

socklen_t size_of(const sockaddr& address) {
  return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

// The first internet address of an interface of this host.
std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  std::string found;
  if (getifaddrs(&list) != 0) list = nullptr;
  for (const ifaddrs* entry = list; entry != nullptr && found.empty(); entry = entry->ifa_next) {
    if (name != entry->ifa_name || entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) found = text_of(*entry->ifa_addr, size_of(*entry->ifa_addr));
  }
  freeifaddrs(list);
  TORCH_CHECK_VALUE(!found.empty(), "meshtorch: GLOO_SOCKET_IFNAME is \"", name,
                    "\", and this host has no such interface with an internet address\n  do: name one that "
                    "`ip address` lists");
  return found;
}

bool can_bind(const sockaddr& address, socklen_t size) {
  const int probe = socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool is_bound = bind(probe, &address, size) == 0;
  close(probe);
  return is_bound;
}

// The first address that the host's own name stands for and that is here; the loopback address if there is
// none.
std::string address_of_host() {
  std::array<char, 256> name{};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (gethostname(name.data(), name.size() - 1) != 0 || getaddrinfo(name.data(), nullptr, &hints, &list) != 0)
    return kLoopback;
  std::string found;
  for (const addrinfo* entry = list; entry != nullptr && found.empty(); entry = entry->ai_next) {
    if (can_bind(*entry->ai_addr, entry->ai_addrlen)) found = text_of(*entry->ai_addr, entry->ai_addrlen);
  }
  freeaddrinfo(list);
  return found.empty() ? kLoopback : found;
}

// Where the other ranks reach this one.
std::string own_address() {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') return address_of_interface(interface);
  return meets_on_loopback() ? kLoopback : address_of_host();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::vector<std::int64_t>& ranks, int rank) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  std::vector<int> others = members;
  std::erase(others, world.rank);
  const AtStore at_store(others, "gloo's connections between " + list_ranks(members));
  const std::string address = own_address();
  const auto options = c10d::ProcessGroupGloo::Options::create(world.timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  const Connect connect = [&](const c10::intrusive_ptr<c10d::Store>& where, int number, int size) {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(where, number, size, options);
  };
  auto gloo = connect(store, rank, static_cast<int>(ranks.size()));
  return with_agreement(std::move(gloo), store, ranks, world, address, connect);
}

}  // namespace meshtorch::internal
