// Moves the terminal between the process groups of the launcher and of rank 0.
#include "terminal.h"

#include <signal.h>
#include <unistd.h>

namespace meshtorch::run {
namespace {

// The kernel stops a background group that changes the terminal's owner, unless it blocks SIGTTOU.
bool give_terminal_to(pid_t group) {
  sigset_t ttou;
  sigset_t before;
  sigemptyset(&ttou);
  sigaddset(&ttou, SIGTTOU);
  sigprocmask(SIG_BLOCK, &ttou, &before);
  const bool given = tcsetpgrp(STDIN_FILENO, group) == 0;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return given;
}

}  // namespace

Terminal::~Terminal() { take_back(); }

bool Terminal::lend_to(pid_t group) {
  if (!lent_ && tcgetpgrp(STDIN_FILENO) == getpgrp()) lent_ = give_terminal_to(group);
  return lent_;
}

void Terminal::take_back() {
  if (lent_) give_terminal_to(getpgrp());
  lent_ = false;
}

}  // namespace meshtorch::run
