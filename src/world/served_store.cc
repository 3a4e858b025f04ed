// The store at an address, which rank 0 serves or a launcher.
#include "world/served_store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "runtime/error_text.h"

namespace meshtorch::internal {
namespace {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// A socket of this machine only: LibTorch's store would listen to the whole network.
int bound_to_loopback(const StoreAddress& address) {
  const bool is_six = address.host == "::1";
  sockaddr_in four{};
  sockaddr_in6 six{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port = htons(static_cast<std::uint16_t>(address.port));
  four.sin_addr.s_addr =
      address.host == "localhost" ? htonl(INADDR_LOOPBACK) : inet_addr(address.host.c_str());
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  const int socket = ::socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int result = is_six ? bind(socket, reinterpret_cast<const sockaddr*>(&six), sizeof six)
                            : bind(socket, reinterpret_cast<const sockaddr*>(&four), sizeof four);
  const int error = errno;
  if (socket >= 0 && result != 0) close(socket);
  TORCH_CHECK(socket >= 0 && result == 0, std::strerror(error));
  return socket;
}

c10d::TCPStoreOptions store_options(int port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;  // the groups wait for their own members
  options.timeout = timeout;
  return options;
}

// Serves the store at the address, unless this process does already. Gives the port: for 0 a free one.
int serve_store(const StoreAddress& address, std::chrono::milliseconds timeout) {
  using Place = std::tuple<pid_t, std::string, int>;  // what a forked process inherits does not serve
  static auto& served = *new std::map<Place, c10::intrusive_ptr<c10d::TCPStore>>;
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  auto& store = served[{getpid(), address.host, address.port}];
  if (!store) {
    c10d::TCPStoreOptions options = store_options(address.port, timeout);
    options.isServer = true;
    if (is_loopback(address.host)) options.masterListenFd = bound_to_loopback(address);
    store = c10::make_intrusive<c10d::TCPStore>(address.host, options);
  }
  return store->getPort();
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_to_store(const StoreAddress& address, int rank, bool serves,
                                                 std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(address.port <= 65535, "meshtorch: port ", address.port, " (", address.source,
                    ") is not below 65536\n  do: give a free port");
  try {
    const int port = serves ? serve_store(address, timeout) : address.port;
    return c10::make_intrusive<c10d::TCPStore>(address.host, store_options(port, timeout));
  } catch (const std::exception&) {
    const std::string what = error_text(std::current_exception());
    const std::string place = c10::str(address.host, ":", address.port, " (", address.source, "): ", what);
    TORCH_CHECK(!serves, "meshtorch: rank 0 cannot listen at ", place,
                "\n  do: give a port that no other program uses, or let meshtorch-run find one");
    TORCH_CHECK(false, "meshtorch: rank ", rank, " cannot reach rank 0 at ", place,
                "\n  do: see that rank 0 runs, and that this machine reaches that address");
  }
}

// Each rank counts the worlds that it has joined, in the store: a process may be another rank of the next.
c10::intrusive_ptr<c10d::Store> of_next_world(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                              int world_size) {
  const std::int64_t number = store->add(c10::str("meshtorch/joined_by/", rank, "_of_", world_size), 1);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("meshtorch/world_", number, "_of_", world_size),
                                                store);
}

}  // namespace meshtorch::internal
