// The launcher's event loop: output, signals, ended ranks and deadlines, until no process is left.
#include "launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "free_port.h"
#include "output.h"
#include "rank_group.h"
#include "report.h"
#include "run_identity.h"
#include "signals.h"
#include "terminal.h"

namespace meshtorch::run {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long a process that outlives its rank may take to end by itself, such as the `tee` behind a
// script.
constexpr milliseconds kLinger{500};
// `timeout` and some supervisors send a signal twice: only a later one means that the user is
// impatient.
constexpr milliseconds kSecondSignal{300};
// SIGKILL works at once except on a process that waits in the kernel, for instance for a dead disk.
constexpr milliseconds kKillPatience{2000};
constexpr milliseconds kKillPause{10};
// After an interrupt, a reader that does not read is not waited for any longer than this.
constexpr milliseconds kFlushPatience{1000};

Clock::time_point in_seconds(double seconds) {
  constexpr double kForever = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, kForever)));
}

class Launcher {
 public:
  explicit Launcher(const Options& options) : options_(options), ranks_(options.identity) {}

  int run() {
    start_ranks();
    while (ranks_.has_processes() && stage_ != Stage::given_up) {
      wait_for_events();
      handle_signals();
      handle_stop_of_rank_0();
      collect_ended_ranks();
      write_output();
      advance_stage();
    }
    drain_streams();
    report_ended();
    flush_output();
    return exit_code_.value_or(0);
  }

  // Whether it ended because a rank failed, and nobody asked for an end.
  bool was_rank_failure() const { return rank_failed_ && !end_request_; }

 private:
  enum class Stage {
    running,
    lingering,  // all ranks have ended by themselves, processes that they started have not
    ending,     // everything was told to end
    killing,    // SIGKILL was sent
    given_up,   // some process cannot be killed
  };

  bool is_ending() const { return stage_ >= Stage::ending; }

  void start_ranks();
  void wait_for_events();
  int poll_milliseconds() const;
  void handle_signals();
  void handle_end_request(int number);
  void handle_stop_of_rank_0();
  void suspend();
  void collect_ended_ranks();
  void write_output();
  void advance_stage();
  // Tells all processes to end; the exit code counts if none is set yet.
  void end_all(std::optional<int> exit_code, int number);
  void kill_all();
  void drain_streams();
  void report_ended();
  void flush_output();
  void say(const std::string& text);

  Options options_;
  std::optional<FreePort> free_port_;
  SignalInbox signals_;
  OutputQueue output_;
  Terminal terminal_;
  RankGroup ranks_;
  Stage stage_ = Stage::running;
  std::optional<int> exit_code_;
  std::optional<Clock::time_point> deadline_;     // of the current stage
  std::optional<Clock::time_point> end_request_;  // when a signal or the timeout asked to end
  bool rank_failed_ = false;
  std::vector<int> told_to_end_;
  std::vector<int> killed_;
};

void Launcher::start_ranks() {
  if (options_.master_port == 0) options_.master_port = free_port_.emplace().number();
  if (options_.timeout_seconds > 0) deadline_ = in_seconds(options_.timeout_seconds);
  try {
    for (int i = 0; i < options_.processes; ++i) ranks_.start(options_, i, signals_.mask_before());
  } catch (const ExecError& error) {
    say(error.what());
    end_all(error.exit_code(), SIGTERM);
  } catch (const std::system_error& error) {
    say("cannot start " + std::to_string(options_.processes) + " processes.\n  number " +
        std::to_string(ranks_.ranks().size() + 1) + " failed: " + error.what() +
        "\n  do: start fewer, or raise the limits of this machine (ulimit -a)");
    end_all(kLauncherFailed, SIGTERM);
  }
}

void Launcher::wait_for_events() {
  std::vector<pollfd> requests{{signals_.fd(), POLLIN, 0}};
  if (!output_.empty()) requests.push_back({output_.next_destination(), POLLOUT, 0});
  const std::size_t first_stream = requests.size();
  std::vector<LineStream*> streams;
  if (!output_.full()) {
    for (const auto& rank : ranks_.ranks())
      for (LineStream* stream : {&rank->output, &rank->error})
        if (stream->fd() >= 0) streams.push_back(stream);
  }
  for (const LineStream* stream : streams) requests.push_back({stream->fd(), POLLIN, 0});
  if (poll(requests.data(), requests.size(), poll_milliseconds()) <= 0) return;
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (requests[first_stream + i].revents != 0) streams[i]->read_some(output_);
}

int Launcher::poll_milliseconds() const {
  if (stage_ == Stage::killing) return static_cast<int>(kKillPause.count());
  if (!deadline_) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now()).count();
  constexpr decltype(left) kLongestWait = 60'000;
  return static_cast<int>(std::clamp(left, decltype(left){0}, kLongestWait));
}

void Launcher::handle_signals() {
  while (const std::optional<int> number = signals_.next()) {
    if (*number == SIGTSTP) suspend();
    if (*number != SIGTSTP && *number != SIGCHLD) handle_end_request(*number);
  }
}

void Launcher::handle_end_request(int number) {
  if (!end_request_) {
    say("got " + describe_signal(number) + "; ending all ranks");
    end_request_ = Clock::now();
    // If a failed rank has already ended the others, they were told: what is left is the wait.
    if (!is_ending()) end_all(kSignalBase + number, number);
    return;
  }
  if (stage_ == Stage::ending && Clock::now() - *end_request_ > kSecondSignal) kill_all();
}

void Launcher::handle_stop_of_rank_0() {
  const int number = ranks_.collect_stop_of_rank_0();
  if (number == SIGTTIN || number == SIGTTOU) {
    if (terminal_.lend_to(ranks_.ranks()[0]->pid))
      ranks_.send(SIGCONT);
    else
      suspend();
  }
  if (number == SIGTSTP && terminal_.is_lent()) suspend();
}

// Ctrl-Z stops the launcher with its ranks; `fg` and `bg` wake them together.
void Launcher::suspend() {
  ranks_.send(SIGSTOP);
  terminal_.take_back();
  raise(SIGSTOP);
  ranks_.send(SIGCONT);
}

void Launcher::collect_ended_ranks() {
  std::optional<int> first_failure;
  for (Rank* rank : ranks_.collect_ended()) {
    // Its last words come before the sentence about its end.
    rank->output.read_present(output_);
    rank->error.read_present(output_);
    if (rank->number == 0) terminal_.take_back();
    const int code = exit_code_of(rank->end);
    if (code == 0 || is_ending()) continue;
    say(describe_end(rank->number, rank->end));
    if (!first_failure) first_failure = code;
  }
  if (!first_failure) return;
  rank_failed_ = true;
  end_all(first_failure, SIGTERM);
}

void Launcher::write_output() {
  const int error = output_.write_some();
  if (error == 0) return;
  if (error != EPIPE) say(std::string("cannot write the output: ") + strerror(error) + "; ending all ranks");
  if (!is_ending()) end_all(error == EPIPE ? kSignalBase + SIGPIPE : kLauncherFailed, SIGTERM);
}

void Launcher::advance_stage() {
  if (stage_ == Stage::running && ranks_.running().empty()) {
    stage_ = Stage::lingering;
    deadline_ = Clock::now() + kLinger;
  }
  if (stage_ == Stage::killing) ranks_.send(SIGKILL);  // also to what was started in between
  if (!deadline_ || Clock::now() < *deadline_) return;
  switch (stage_) {
    case Stage::running:
      say("timeout: after " + describe_seconds(options_.timeout_seconds) +
          " still running: " + name_ranks(ranks_.running()) + "; ending all ranks");
      end_request_ = Clock::now();
      return end_all(kTimedOut, SIGTERM);
    case Stage::lingering:
      say("the ranks have ended but left processes behind; ending those");
      return end_all(std::nullopt, SIGTERM);
    case Stage::ending:
      return kill_all();
    case Stage::killing:
      say("a process does not end even when killed; see ps for state D");
      stage_ = Stage::given_up;
      return;
    case Stage::given_up:
      return;
  }
}

void Launcher::end_all(std::optional<int> exit_code, int number) {
  if (!exit_code_) exit_code_ = exit_code;
  told_to_end_ = ranks_.running();
  ranks_.send(number);
  stage_ = Stage::ending;
  deadline_ = in_seconds(options_.grace_seconds);
}

void Launcher::kill_all() {
  killed_ = ranks_.running();
  ranks_.send(SIGKILL);
  stage_ = Stage::killing;
  deadline_ = Clock::now() + kKillPatience;
}

void Launcher::drain_streams() {
  for (const auto& rank : ranks_.ranks()) {
    for (LineStream* stream : {&rank->output, &rank->error}) {
      stream->read_present(output_);
      stream->finish(output_);
    }
  }
  output_.end_open_line();
}

void Launcher::report_ended() {
  std::vector<int> ended;
  std::set_difference(told_to_end_.begin(), told_to_end_.end(), killed_.begin(), killed_.end(),
                      std::back_inserter(ended));
  if (!ended.empty()) say("ended " + name_ranks(ended));
  if (!killed_.empty()) say("killed " + name_ranks(killed_) + ", which had not ended when told to");
}

void Launcher::flush_output() {
  const auto give_up_at = Clock::now() + kFlushPatience;
  while (!output_.empty()) {
    write_output();
    if (output_.empty() || (end_request_ && Clock::now() > give_up_at)) return;
    std::vector<pollfd> requests{{signals_.fd(), POLLIN, 0}, {output_.next_destination(), POLLOUT, 0}};
    poll(requests.data(), requests.size(), end_request_ ? static_cast<int>(kKillPause.count()) : -1);
    while (const std::optional<int> number = signals_.next()) {
      if (*number == SIGCHLD || *number == SIGTSTP) continue;
      if (!exit_code_) exit_code_ = kSignalBase + *number;
      return;
    }
  }
}

void Launcher::say(const std::string& text) {
  output_.put_line(nullptr, STDERR_FILENO, "", "meshtorch-run: " + text, '\n');
}

}  // namespace

int launch(const Options& given) {
  for (Options options = given;; ++options.restart) {
    options.identity = random_identity();
    // The machines of a run share a secret only if the user gives it to all of them.
    const char* secret = std::getenv(kSecretVariable);
    if (options.nnodes == 1 && (secret == nullptr || *secret == '\0')) options.secret = random_identity();
    Launcher launcher(options);
    const int exit_code = launcher.run();
    if (!launcher.was_rank_failure() || options.restart == options.max_restarts) return exit_code;
    std::cerr << "meshtorch-run: starting all ranks again, " << options.restart + 1 << " of at most "
              << options.max_restarts << " times" << std::endl;
  }
}

}  // namespace meshtorch::run
