// Starts the ranks under a guardian and keeps account of every process below the launcher.
#include "rank_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "descendants.h"

namespace meshtorch::run {
namespace {

std::string make_prefix(const Options& options, int rank) {
  if (!options.prefix) return "";
  const std::string number = std::to_string(rank);
  const std::size_t widest = std::to_string(options.world_size() - 1).size();
  return "[rank " + std::string(widest - number.size(), ' ') + number + "] ";
}

// How long threads of a process may outlive the first one before nobody waits for them.
constexpr std::chrono::milliseconds kLongestEnding(500);

// Whether its first thread is dead: the other ranks see it as dead, though its end can be collected only when
// the other threads are dead too.
bool is_ending(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.compare(name_end, 3, ") Z") == 0;
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
  const auto has_ended = [](Rank& rank) {
    rank.end.si_pid = 0;
    const auto id = static_cast<id_t>(rank.pid);
    rank.ended = waitid(P_PID, id, &rank.end, WEXITED | WNOHANG | WNOWAIT) == 0 && rank.end.si_pid != 0;
    return rank.ended;
  };
  std::vector<Rank*> ended;
  for (const auto& rank : ranks_) {
    if (!rank->ended && has_ended(*rank)) ended.push_back(rank.get());
  }
  // Those that end because of another must not be told first.
  const auto limit = std::chrono::steady_clock::now() + kLongestEnding;
  std::vector<Rank*> first;
  for (const auto& rank : ranks_) {
    if (ended.empty() || rank->ended || !is_ending(rank->pid)) continue;
    while (!has_ended(*rank) && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank->ended) first.push_back(rank.get());
  }
  ended.insert(ended.begin(), first.begin(), first.end());
  std::stable_partition(ended.begin(), ended.end(), [](const Rank* rank) {
    const bool is_exception = rank->end.si_code != CLD_EXITED && rank->end.si_status == SIGABRT;
    return !is_exception;  // which may be about another that ended since the last look
  });
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
