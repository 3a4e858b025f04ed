// Blocks the launcher's signals and reads them through a signalfd.
#include "signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace meshtorch::run {
namespace {

bool is_ignored(int number) {
  struct sigaction action{};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalInbox::SignalInbox() {
  signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would hide how the ranks end
  signal(SIGPIPE, SIG_IGN);  // a reader that goes away is seen at the write
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP})
    if (!is_ignored(number)) sigaddset(&ours, number);
  sigprocmask(SIG_BLOCK, &ours, &mask_before_);
  fd_ = signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
}

SignalInbox::~SignalInbox() {
  close(fd_);
  // The mask stays: a signal that comes after the last rank ended must not change the exit code.
}

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info{};
  if (read(fd_, &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace meshtorch::run
