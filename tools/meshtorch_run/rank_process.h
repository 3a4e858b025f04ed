// One rank as a process: its environment, its pipes and its own process group, from fork to exec.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <stdexcept>
#include <string>

#include "options.h"

namespace meshtorch::run {

// The program could not be run at all; what() is the whole message, exit_code() is 126 or 127.
class ExecError : public std::runtime_error {
 public:
  ExecError(const std::string& message, int exit_code) : runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct RankProcess {
  int rank = 0;    // among all machines
  pid_t pid = -1;  // also the number of its process group
  int output_fd = -1;
  int error_fd = -1;
};

// Starts the program as the given local rank; returns when it runs. It is killed if the launcher
// dies. Throws ExecError if the program cannot be run, std::system_error if the machine has no room
// for it.
RankProcess start_rank(const Options& options, int local_rank, const sigset_t& signal_mask);

}  // namespace meshtorch::run
