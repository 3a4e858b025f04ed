// What the command line of meshtorch-run asks for: the first stage, before any process is started.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace meshtorch::run {

// Exit codes that are the launcher's own; otherwise it passes on the code of a rank.
inline constexpr int kUsageError = 2;
inline constexpr int kTimedOut = 124;
inline constexpr int kLauncherFailed = 125;
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;
inline constexpr int kSignalBase = 128;

struct Options {
  int processes = 0;  // on this machine; the same on every machine
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: the launcher finds a free one
  bool prefix = true;
  double grace_seconds = 5;
  double timeout_seconds = 0;  // 0: none
  int max_restarts = 0;
  int restart = 0;                   // how often the ranks were started before
  std::string identity;              // of this run, which all its processes inherit
  std::string secret;                // of this run; empty: none
  std::string flight_record;         // the directory; empty: none
  std::string diagnose;              // the directory to look at, instead of running anything
  std::vector<std::string> command;  // the program and its arguments, unchanged

  int world_size() const { return processes * nnodes; }
};

// Either options that are fit to run, or the exit code after help, version or an error was printed.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};

// Everything from the first word that is neither an option nor its value belongs to the program.
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace meshtorch::run
