// The matrix of events: whatever a rank does in a collective, on every kind of ranks, each other rank gets an
// error that names it. Nothing is silent, nobody aborts, nobody hangs.
#include <gtest/gtest.h>
#include <meshtorch/collectives.h>
#include <meshtorch/launch.h>
#include <meshtorch/process_group.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "events.h"

namespace fs = std::filesystem;
namespace mt = meshtorch;

namespace meshtorch::testing {
namespace {

constexpr std::chrono::milliseconds kTimeout(3000);
constexpr const char* kStallOfTheStore = "the store stalls";
constexpr const char* kStallOfTheStoreBehindAnother = "the store stalls behind another rank";
constexpr const char* kOtherLevel = "another level of agreement";
constexpr const char* kSignal = "a signal asks for the record";

std::string free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(socket, generic, size), 0);
  EXPECT_EQ(getsockname(socket, generic, &size), 0);
  close(socket);
  return std::to_string(ntohs(address.sin_port));
}

// Processes of one machine that count as being on several hosts: on which each of the ranks is.
const std::map<std::string, std::array<const char*, kRanks>>& hosts() {
  static const std::map<std::string, std::array<const char*, kRanks>> known{
      {"gloo_guilty_apart", {"a", "b", "a"}},
      {"gloo_guilty_beside", {"a", "a", "b"}},
      {"gloo_all_apart", {"a", "b", "c"}},
  };
  return known;
}

// What each rank was told, and whether it could go on; of a rank that ended, how.
struct Outcome {
  std::string told;
  bool went_on = false;
  int status = 0;
};
using Outcomes = std::vector<Outcome>;

std::string to_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = '|';
  }
  return text;
}

fs::path file_of(const fs::path& place, int rank, int number) {
  return place / (std::to_string(rank) + "_" + std::to_string(number));
}

void write_outcome(const fs::path& file, const std::string& told, bool went_on) {
  std::ofstream(file) << (went_on ? "1" : "0") << to_line(told) << "\n";
}

Outcome read_outcome(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  Outcome outcome;
  if (!std::getline(in, line) || line.empty()) return outcome;
  outcome.went_on = line[0] == '1';
  outcome.told = line.substr(1);
  return outcome;
}

// Ranks that are processes, each of which runs the program again.
class Processes {
 public:
  Processes(const std::string& backend, const std::string& event) {
    std::string name = (fs::temp_directory_path() / "meshtorch_events_XXXXXX").string();
    place_ = mkdtemp(name.data());
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string number = std::to_string(rank);
      const pid_t process = fork();
      if (process == 0) {
        if (const auto parts = hosts().find(backend); parts != hosts().end())
          setenv("MESHTORCH_HOST_PART", parts->second[static_cast<std::size_t>(rank)], 1);
        const std::string kind = backend.substr(0, backend.find('_'));
        execl("/proc/self/exe", "event_tests", "--play", number.c_str(), kind.c_str(), place_.c_str(),
              event.c_str(), nullptr);
        _exit(127);
      }
      processes_.push_back(process);
    }
  }
  // Ends what is left, which nothing but a stopped rank should be.
  ~Processes() {
    for (const pid_t process : processes_) {
      if (process > 0) {
        kill(process, SIGKILL);
        waitpid(process, nullptr, 0);
      }
    }
    fs::remove_all(place_);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // False if a rank has not ended by itself in a minute.
  bool wait_for(int rank, int& status) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    pid_t& process = processes_[static_cast<std::size_t>(rank)];
    while (std::chrono::steady_clock::now() < end) {
      if (waitpid(process, &status, WNOHANG) == process) {
        process = -1;
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  const fs::path& place() const { return place_; }

 private:
  fs::path place_;
  std::vector<pid_t> processes_;
};

std::string in_test_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (c != ' ') name += c;
  }
  return name;
}

// As the one that is gone ("rank 1 has died"), or in the list of where each rank is as one that is behind.
::testing::AssertionResult names_the_guilty(const std::string& told) {
  const std::regex name(
      "rank 1 failed|rank 1 left|rank 1 has|rank 1: has left|"
      "rank 1: is in [a-z_]+ #[0-9]+, behind the others");
  if (std::regex_search(told, name)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "told: " << told;
}

// A list of events and how one is played.
struct Matrix {
  std::string name;
  const std::vector<std::string>& events;
  std::string (*play)(const std::string& event, int rank);
};
const Matrix& matrix(const std::string& name) {
  static const Matrix loud{"disagreements", disagreements(), &play_disagreement};
  static const Matrix silent{"silent disagreements", silent_disagreements(), &play_silent_disagreement};
  static const Matrix modules{"modules' disagreements", disagreements_of_modules(),
                              &play_disagreement_of_modules};
  static const Matrix places{"places' disagreements", disagreements_of_places(),
                             &play_disagreement_of_places};
  static const Matrix data{"data's disagreements", disagreements_of_data(), &play_disagreement_of_data};
  for (const Matrix* known : {&loud, &silent, &modules, &places}) {
    if (name == known->name) return *known;
  }
  return data;
}

// One outcome for each event and rank.
std::vector<Outcomes> play_on_threads(const Matrix& played) {
  std::vector<Outcomes> outcomes(played.events.size(), Outcomes(kRanks));
  mt::spawn(kRanks, [&](int rank) {
    for (std::size_t i = 0; i < played.events.size(); ++i) {
      Outcome& outcome = outcomes[i][static_cast<std::size_t>(rank)];
      outcome.told = to_line(played.play(played.events[i], rank));
      outcome.went_on = can_go_on();
    }
  });
  return outcomes;
}

std::vector<Outcomes> play_on_processes(const Matrix& played, const std::string& backend) {
  Processes processes(backend, played.name);
  std::vector<Outcomes> outcomes(played.events.size(), Outcomes(kRanks));
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    EXPECT_TRUE(processes.wait_for(rank, status)) << "rank " << rank << " hangs";
    EXPECT_EQ(status, 0) << "rank " << rank;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      outcomes[i][static_cast<std::size_t>(rank)] =
          read_outcome(file_of(processes.place(), rank, static_cast<int>(i)));
    }
  }
  return outcomes;
}

std::vector<Outcomes> play_on(const Matrix& played, const std::string& backend) {
  return backend == "threads" ? play_on_threads(played) : play_on_processes(played, backend);
}

// While it lives, worlds that are made compare in full.
struct InFull {
  InFull() { setenv("MESHTORCH_AGREEMENT", "full", 1); }
  ~InFull() { unsetenv("MESHTORCH_AGREEMENT"); }
  InFull(const InFull&) = delete;
  InFull& operator=(const InFull&) = delete;
};

class Disagreements : public ::testing::TestWithParam<std::string> {};

void expect_one_table(const Matrix& played, const std::vector<Outcomes>& outcomes) {
  const std::regex guilty("rank 1|ranks \\[1\\]");
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    SCOPED_TRACE(played.events[i]);
    for (const Outcome& outcome : outcomes[i]) {
      EXPECT_TRUE(std::regex_search(outcome.told, guilty)) << outcome.told;
      EXPECT_EQ(outcome.told, outcomes[i][0].told);
      EXPECT_TRUE(outcome.went_on) << outcome.told;
    }
  }
}

TEST_P(Disagreements, EveryRankGetsOneTableThatNamesTheGuiltyOneAndTheGroupGoesOn) {
  const Matrix& played = matrix("disagreements");
  expect_one_table(played, play_on(played, GetParam()));
}

TEST_P(Disagreements, OnCallsThatSendNothingAreToldAtTheNextCollective) {
  const Matrix& played = matrix("silent disagreements");
  expect_one_table(played, play_on(played, GetParam()));
}

TEST_P(Disagreements, OnCallsThatSendNothingAreToldWhereRanksCompareInFull) {
  const InFull level;
  const Matrix& played = matrix("silent disagreements");
  const std::vector<Outcomes> outcomes = play_on(played, GetParam());
  expect_one_table(played, outcomes);
  for (const Outcomes& of_ranks : outcomes)
    EXPECT_EQ(of_ranks[0].told.find("rank 1: all_reduce"), std::string::npos) << of_ranks[0].told;
}

TEST_P(Disagreements, OnTheModuleOfACallAreToldWhereRanksCompareInFull) {
  const InFull level;
  const Matrix& played = matrix("modules' disagreements");
  const std::vector<Outcomes> outcomes = play_on(played, GetParam());
  expect_one_table(played, outcomes);
  for (const char* words : {"rank 0: all_reduce(Float[4], sum) of module TwoSums.first",
                            "rank 1: all_reduce(Float[4], sum) of module TwoSums.second"})
    EXPECT_NE(outcomes[0][0].told.find(words), std::string::npos) << outcomes[0][0].told;
}

// Each rank can go on from one place, as all do in between.
TEST_P(Disagreements, OnThePlaceOfACallAreToldWhereRanksCompareInFull) {
  const InFull level;
  const Matrix& played = matrix("places' disagreements");
  const std::vector<Outcomes> outcomes = play_on(played, GetParam());
  expect_one_table(played, outcomes);
  // By name and line where there is a tool that reads debug information.
  const bool has_lines = std::system("addr2line --version > /dev/null 2>&1") == 0;
  for (const Outcomes& of_ranks : outcomes) {
    const std::string& told = of_ranks[0].told;
    for (const std::string line :
         {"rank 0: [^|]* at [^|]*train[^|]*", "rank 1: [^|]* at [^|]*evaluate[^|]*"}) {
      EXPECT_TRUE(std::regex_search(
          told, std::regex(has_lines ? line + "\\(events\\.cc:[0-9]+\\)" : "at event_tests\\+0x")))
          << told;
    }
  }
}

TEST_P(Disagreements, OnThePlaceOfACallAreNotComparedByDefault) {
  const Matrix& played = matrix("places' disagreements");
  for (const Outcomes& of_ranks : play_on(played, GetParam())) {
    for (const Outcome& outcome : of_ranks) EXPECT_EQ(outcome.told, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Events, Disagreements,
                         ::testing::Values("threads", "shm", "gloo", "gloo_guilty_apart",
                                           "gloo_guilty_beside", "gloo_all_apart"),
                         [](const auto& instance) { return instance.param; });

class FailedCalls : public ::testing::TestWithParam<std::string> {};

TEST_P(FailedCalls, ByTheDataOfOneRankAreToldToEveryRankAtTheNextCollective) {
  const Matrix& played = matrix("data's disagreements");
  const std::vector<Outcomes> outcomes = play_on(played, GetParam());
  expect_one_table(played, outcomes);
  EXPECT_NE(outcomes[0][0].told.find("after aten::embedding: index out of range"), std::string::npos)
      << outcomes[0][0].told;
}

INSTANTIATE_TEST_SUITE_P(Events, FailedCalls,
                         ::testing::Values("gloo", "gloo_guilty_apart", "gloo_guilty_beside"),
                         [](const auto& instance) { return instance.param; });

class Absences : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Absences, OfARankIsAnErrorThatNamesItOnEveryOther) {
  const auto& [backend, event] = GetParam();
  Processes processes(backend, event);
  const auto begin = std::chrono::steady_clock::now();
  for (const int rank : {0, 2}) {
    int status = 0;
    ASSERT_TRUE(processes.wait_for(rank, status)) << "rank " << rank << " hangs";
    EXPECT_EQ(status, 0) << "rank " << rank << " did not end as it should";
    const Outcome outcome = read_outcome(file_of(processes.place(), rank, 0));
    EXPECT_TRUE(names_the_guilty(outcome.told));
    EXPECT_NE(outcome.told.find(words_of(event)), std::string::npos) << outcome.told;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(45));
}

INSTANTIATE_TEST_SUITE_P(
    Events, Absences, ::testing::Combine(::testing::Values("shm", "gloo"), ::testing::ValuesIn(absences())),
    [](const auto& instance) {
      return std::get<0>(instance.param) + "_" + in_test_name(std::get<1>(instance.param));
    });

// On gloo both sides of a new group are connected through the store, on shm its memory is found there.
class StoppedStore : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(StoppedStore, IsAnErrorThatNamesTheRankThatServesIt) {
  ASSERT_EQ(setenv("MESHTORCH_EVENT_PORT", free_port().c_str(), 1), 0);
  const auto& [backend, event] = GetParam();
  Processes processes(backend, event);
  for (const int rank : {1, 2}) {
    int status = 0;
    ASSERT_TRUE(processes.wait_for(rank, status)) << "rank " << rank << " hangs";
    EXPECT_EQ(status, 0) << "rank " << rank << " did not end as it should";
    const Outcome outcome = read_outcome(file_of(processes.place(), rank, 0));
    EXPECT_TRUE(
        std::regex_search(outcome.told, std::regex("rank 0 has not come: its process [0-9]+ is stopped")))
        << outcome.told;
  }
}

INSTANTIATE_TEST_SUITE_P(Events, StoppedStore,
                         ::testing::Combine(::testing::Values("shm", "gloo"),
                                            ::testing::Values(kStallOfTheStore,
                                                              kStallOfTheStoreBehindAnother)),
                         [](const auto& instance) {
                           const bool is_behind =
                               std::get<1>(instance.param) == kStallOfTheStoreBehindAnother;
                           return std::get<0>(instance.param) + (is_behind ? "_behind_another" : "");
                         });

class Levels : public ::testing::TestWithParam<std::string> {};

TEST_P(Levels, ThatDifferAreToldToEveryRank) {
  Processes processes(GetParam(), kOtherLevel);
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_TRUE(processes.wait_for(rank, status)) << "rank " << rank << " hangs";
    EXPECT_EQ(status, 0);
    const std::string told = read_outcome(file_of(processes.place(), rank, 0)).told;
    EXPECT_NE(told.find("different values of the level of agreement: rank 0 has \"on\", rank 1 \"full\""),
              std::string::npos)
        << told;
  }
}

INSTANTIATE_TEST_SUITE_P(Events, Levels, ::testing::Values("shm", "gloo"),
                         [](const auto& instance) { return instance.param; });

TEST(ForkedChild, OfARankThatExitsIsNoEndOfTheRank) {
  Processes processes("shm", "a child exits");
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_TRUE(processes.wait_for(rank, status)) << "rank " << rank << " hangs";
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(read_outcome(file_of(processes.place(), rank, 0)).went_on) << "rank " << rank;
  }
}

TEST(FlightRecords, AreWrittenWhenASignalAsksForThemAndTheRankGoesOn) {
  Processes processes("shm", kSignal);
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_TRUE(processes.wait_for(rank, status)) << "rank " << rank << " hangs";
    EXPECT_EQ(status, 0);
    const Outcome outcome = read_outcome(file_of(processes.place(), rank, 0));
    EXPECT_TRUE(outcome.went_on) << "rank " << rank << ": " << outcome.told;
  }
}

TEST(AbsencesOfThreads, AreErrorsThatNameTheRankOnEveryOther) {
  for (const std::string event : {"throws", "fails in an operator", "returns", "stalls"}) {
    SCOPED_TRACE(event);
    std::vector<std::string> told(kRanks);
    std::latch innocents_know(kRanks - 1);
    const auto run = [&](int rank) {
      if (rank == kGuilty && (event == "returns" || event == "stalls")) {
        mt::barrier();
        if (event == "stalls") innocents_know.wait();
        return;
      }
      told[static_cast<std::size_t>(rank)] = play_absence(event, rank);
      innocents_know.count_down();
    };
    try {
      mt::spawn(kRanks, run, {.timeout = std::chrono::milliseconds(300)});
    } catch (const mt::RankError& error) {
      EXPECT_EQ(error.rank(), kGuilty);
    }
    for (const int rank : {0, 2}) {
      const std::string& text = told[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(names_the_guilty(text));
      const std::string words = event == "throws" ? "rank 1 failed: the dog ate it" : "rank 1";
      EXPECT_NE(text.find(words), std::string::npos) << text;
    }
  }
}

// Ranks begin together, however long their programs take to load: their time limits are short.
void wait_until_all_have_begun(const fs::path& place, int rank) {
  const auto file = [&](int r) { return place / ("began_" + std::to_string(r)); };
  std::ofstream(file(rank)).put('.');
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (int r = 0; r < kRanks; ++r) {
    while (!fs::exists(file(r)) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string text_of(const fs::path& file) {
  return (std::ostringstream() << std::ifstream(file).rdbuf()).str();
}

// Whether this rank's record says within a minute that the signal asked for it, and holds the barrier.
bool signal_writes_record(const fs::path& directory, int rank) {
  raise(SIGUSR1);
  const fs::path file = directory / ("rank_" + std::to_string(rank) + ".json");
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < end) {
    const std::string text = text_of(file);
    if (text.find("SIGUSR1") != std::string::npos && text.find("barrier") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// A process of `Processes`.
int play(int rank, const std::string& backend, const fs::path& place, const std::string& event) {
  wait_until_all_have_begun(place, rank);
  const bool stalls_behind = event == kStallOfTheStoreBehindAnother;
  const bool is_served = event == kStallOfTheStore || stalls_behind;
  const char* port = std::getenv("MESHTORCH_EVENT_PORT");
  const bool is_impatient = (event == kStallsBehindAnother && rank == 0) || (stalls_behind && rank == 2);
  mt::InitOptions options{.backend = backend,
                          .init_method = is_served ? std::string("tcp://127.0.0.1:") + port
                                                   : "file://" + (place / "store").string(),
                          .rank = rank,
                          .world_size = kRanks,
                          .timeout = is_impatient ? kTimeout / 2 : kTimeout};
  if (event == kOtherLevel) {
    options.agreement = rank == kGuilty ? mt::Agreement::full : mt::Agreement::on;
    write_outcome(file_of(place, rank, 0), thrown_by([&] { mt::init_process_group(options); }), false);
    return 0;
  }
  const fs::path records = place / "records";
  if (event == kSignal) setenv("MESHTORCH_FLIGHT_RECORD", records.c_str(), 1);
  mt::init_process_group(options);
  if (event == kSignal) {
    mt::barrier();
    const bool is_written = signal_writes_record(records, rank);
    const bool went_on = can_go_on();
    write_outcome(file_of(place, rank, 0), is_written ? "written" : "not written", is_written && went_on);
  } else if (event == "a child exits") {
    mt::barrier();
    if (const pid_t child = rank == kGuilty ? fork() : -1; child == 0) {
      std::exit(0);
    } else if (child > 0) {
      waitpid(child, nullptr, 0);
    }
    write_outcome(file_of(place, rank, 0), "", can_go_on());
  } else if (is_served) {
    write_outcome(file_of(place, rank, 0), play_stall_of_the_store(place / "process", rank, stalls_behind),
                  false);
  } else if (!event.ends_with("disagreements")) {
    const std::string told = play_absence(event, rank);
    write_outcome(file_of(place, rank, 0), told, false);
  } else {
    const Matrix& played = matrix(event);
    for (std::size_t i = 0; i < played.events.size(); ++i) {
      const std::string told = played.play(played.events[i], rank);
      write_outcome(file_of(place, rank, static_cast<int>(i)), told, can_go_on());
    }
    mt::barrier();
  }
  if (mt::is_initialized()) mt::destroy_process_group();
  return 0;
}

}  // namespace
}  // namespace meshtorch::testing

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--play") == 0) {
    return meshtorch::testing::play(std::atoi(argv[2]), argv[3], argv[4], argv[5]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
