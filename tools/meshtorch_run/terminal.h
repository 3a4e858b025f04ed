// The terminal behind the launcher's standard input, lent to rank 0 when it reads from it.
#pragma once

#include <sys/types.h>

namespace meshtorch::run {

// Rank 0 has its own process group, and the kernel stops a group that reads the terminal without
// holding it. Until it does, the launcher holds the terminal, so that Ctrl-C reaches the launcher.
class Terminal {
 public:
  Terminal() = default;
  // Takes the terminal back.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Makes the group the one that reads the terminal; false if the launcher does not hold it itself.
  bool lend_to(pid_t group);
  void take_back();
  bool is_lent() const { return lent_; }

 private:
  bool lent_ = false;
};

}  // namespace meshtorch::run
