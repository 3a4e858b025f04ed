// Words for exit states, signals, rank lists and times.
#include "report.h"

#include <cstring>
#include <sstream>

#include "options.h"

namespace meshtorch::run {

std::string describe_end(int rank, const siginfo_t& end) {
  const std::string who = "rank " + std::to_string(rank) + " (pid " + std::to_string(end.si_pid) + ")";
  if (end.si_code == CLD_EXITED) return who + " exited with code " + std::to_string(end.si_status);
  const std::string text = who + " was ended by " + describe_signal(end.si_status);
  if (end.si_status != SIGKILL) return text;
  return text + "\n  do: if nobody killed it, it may have run out of memory; see dmesg";
}

int exit_code_of(const siginfo_t& end) {
  return end.si_code == CLD_EXITED ? end.si_status : kSignalBase + end.si_status;
}

std::string describe_signal(int number) {
  return "signal " + std::to_string(number) + " (" + strsignal(number) + ")";
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string describe_seconds(double seconds) {
  std::ostringstream text;
  text << seconds << " s";
  return text.str();
}

}  // namespace meshtorch::run
