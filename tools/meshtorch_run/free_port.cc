// Asks the kernel for a free loopback port by binding port 0, and stays bound.
#include "free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace meshtorch::run {

FreePort::FreePort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (socket_ < 0) throw std::system_error(errno, std::generic_category(), "socket");
  const int on = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket_, generic, size) != 0 || getsockname(socket_, generic, &size) != 0) {
    const int error = errno;
    close(socket_);
    throw std::system_error(error, std::generic_category(), "bind to a free loopback port");
  }
  number_ = ntohs(address.sin_port);
}

FreePort::~FreePort() { close(socket_); }

}  // namespace meshtorch::run
