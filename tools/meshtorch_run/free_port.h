// The port at which the ranks of a single machine meet.
#pragma once

namespace meshtorch::run {

// A TCP port that was free on the loopback interface, kept for a server that may reuse addresses (as torch's
// store does): while this lives, the kernel gives the port to no other program that asks for any free one.
class FreePort {
 public:
  FreePort();  // throws std::system_error
  ~FreePort();
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;

  int number() const { return number_; }

 private:
  int socket_ = -1;
  int number_ = 0;
};

}  // namespace meshtorch::run
