// The signals that reach the launcher, as something to poll and read instead of handlers.
#pragma once

#include <signal.h>

#include <optional>

namespace meshtorch::run {

// While it lives, SIGCHLD, SIGTSTP and the signals that ask the launcher to end arrive here. A
// signal that was ignored at the start (nohup, a background job of a script) stays ignored.
class SignalInbox {
 public:
  SignalInbox();
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const { return fd_; }
  // The next signal, if one has arrived.
  std::optional<int> next();
  // The mask that a program started from here must get back.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  sigset_t mask_before_{};
  int fd_ = -1;
};

}  // namespace meshtorch::run
