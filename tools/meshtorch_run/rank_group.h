// All ranks of this machine and everything they have started: started, signalled and reaped
// together.
#pragma once

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "guardian.h"
#include "options.h"
#include "output.h"
#include "rank_process.h"

namespace meshtorch::run {

struct Rank {
  Rank(const RankProcess& process, const std::string& prefix);

  int number;
  pid_t pid;
  LineStream output;
  LineStream error;
  bool ended = false;
  siginfo_t end{};  // how it ended
};

// An ended rank stays a zombie until the group is destroyed: its number then belongs to no other
// process, so that a signal to its process group can only meet what the rank itself left behind.
class RankGroup {
 public:
  explicit RankGroup(const std::string& identity);
  // Kills what is left, and reaps it.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Starts one more rank. Throws as start_rank does.
  void start(const Options& options, int local_rank, const sigset_t& signal_mask);

  const std::vector<std::unique_ptr<Rank>>& ranks() const { return ranks_; }
  std::vector<int> running() const;

  // Marks the ranks that have ended since the last call and returns them; also reaps adopted
  // orphans.
  std::vector<Rank*> collect_ended();
  // True if a rank runs or a process that one has started.
  bool has_processes() const;
  // Sends the signal to every process group, to adopted orphans too, and wakes those that are
  // stopped.
  void send(int number) const;
  // The signal that has stopped rank 0 since the last call, or 0.
  int collect_stop_of_rank_0() const;

 private:
  std::vector<pid_t> adopted() const;

  Guardian guardian_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace meshtorch::run
