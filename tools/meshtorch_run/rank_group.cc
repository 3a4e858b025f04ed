// Starts the ranks under a guardian and keeps account of every process below the launcher.
#include "rank_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "descendants.h"

namespace meshtorch::run {
namespace {

std::string make_prefix(const Options& options, int rank) {
  if (!options.prefix) return "";
  const std::string number = std::to_string(rank);
  const std::size_t widest = std::to_string(options.world_size() - 1).size();
  return "[rank " + std::string(widest - number.size(), ' ') + number + "] ";
}

}  // namespace

Rank::Rank(const RankProcess& process, const std::string& prefix)
    : number(process.rank),
      pid(process.pid),
      output(process.output_fd, STDOUT_FILENO, prefix),
      error(process.error_fd, STDERR_FILENO, prefix) {}

RankGroup::RankGroup(const std::string& identity) : guardian_(identity) { adopt_orphans(); }

RankGroup::~RankGroup() {
  send(SIGKILL);
  for (const auto& rank : ranks_) waitpid(rank->pid, nullptr, rank->ended ? 0 : WNOHANG);
  for (const pid_t pid : adopted()) waitpid(pid, nullptr, WNOHANG);
}

void RankGroup::start(const Options& options, int local_rank, const sigset_t& signal_mask) {
  const RankProcess process = start_rank(options, local_rank, signal_mask);
  guardian_.watch_group(process.pid);
  ranks_.push_back(std::make_unique<Rank>(process, make_prefix(options, process.rank)));
}

std::vector<int> RankGroup::running() const {
  std::vector<int> numbers;
  for (const auto& rank : ranks_)
    if (!rank->ended) numbers.push_back(rank->number);
  return numbers;
}

std::vector<Rank*> RankGroup::collect_ended() {
  std::vector<Rank*> ended;
  for (const auto& rank : ranks_) {
    if (rank->ended) continue;
    rank->end.si_pid = 0;
    const auto id = static_cast<id_t>(rank->pid);
    if (waitid(P_PID, id, &rank->end, WEXITED | WNOHANG | WNOWAIT) != 0 || rank->end.si_pid == 0) continue;
    rank->ended = true;
    ended.push_back(rank.get());
  }
  for (const pid_t pid : adopted()) waitpid(pid, nullptr, WNOHANG);
  return ended;
}

bool RankGroup::has_processes() const { return !running().empty() || !adopted().empty(); }

void RankGroup::send(int number) const {
  for (const int signal_number : {number, SIGCONT}) {
    for (const auto& rank : ranks_) kill(-rank->pid, signal_number);
    for (const pid_t pid : adopted()) kill(pid, signal_number);
    if (number == SIGSTOP) return;
  }
}

int RankGroup::collect_stop_of_rank_0() const {
  if (ranks_.empty() || ranks_[0]->number != 0 || ranks_[0]->ended) return 0;
  siginfo_t stop{};
  const auto id = static_cast<id_t>(ranks_[0]->pid);
  if (waitid(P_PID, id, &stop, WSTOPPED | WNOHANG) != 0) return 0;
  return stop.si_pid == 0 ? 0 : stop.si_status;
}

std::vector<pid_t> RankGroup::adopted() const {
  std::vector<pid_t> pids = list_children();
  std::erase_if(pids, [&](pid_t pid) {
    return pid == guardian_.pid() ||
           std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank->pid == pid; });
  });
  return pids;
}

}  // namespace meshtorch::run
