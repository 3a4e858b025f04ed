// The sentences in which the launcher tells what happened to its ranks.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

namespace meshtorch::run {

// "rank 2 (pid 1234) exited with code 3", or "... was ended by signal 11 (Segmentation fault)".
std::string describe_end(int rank, const siginfo_t& end);

// The exit code of a process, or 128 plus the signal that ended it.
int exit_code_of(const siginfo_t& end);

// "signal 15 (Terminated)"
std::string describe_signal(int number);

// "rank 2", "ranks 0, 1, 3"
std::string name_ranks(const std::vector<int>& ranks);

// "5 s", "0.25 s"
std::string describe_seconds(double seconds);

}  // namespace meshtorch::run
