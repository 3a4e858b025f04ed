// Joining a world: what the environment, addresses and stores must say, and each mistake by name.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <sstream>
#include <thread>

#include "ranks.h"

namespace meshtorch::testing {
namespace {

const std::vector<std::string> kVariables{"RANK",
                                          "WORLD_SIZE",
                                          "LOCAL_RANK",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "OMPI_COMM_WORLD_RANK",
                                          "OMPI_COMM_WORLD_SIZE",
                                          "OMPI_COMM_WORLD_LOCAL_RANK",
                                          "MV2_COMM_WORLD_RANK",
                                          "MV2_COMM_WORLD_SIZE",
                                          "MV2_COMM_WORLD_LOCAL_RANK",
                                          "PMI_RANK",
                                          "PMI_SIZE",
                                          "MPI_LOCALRANKID",
                                          "SLURM_PROCID",
                                          "SLURM_NTASKS",
                                          "SLURM_LOCALID",
                                          "SLURM_LAUNCH_NODE_IPADDR",
                                          "TORCHELASTIC_USE_AGENT_STORE",
                                          "TORCHELASTIC_RESTART_COUNT",
                                          "MESHTORCH_SECRET"};

// An environment that has these variables of launchers and no others, while it lives.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const std::string& name : kVariables) {
      if (const char* value = std::getenv(name.c_str())) before_[name] = value;
      unsetenv(name.c_str());
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : kVariables) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::string> before_;
};

// Joins, says who this rank is ("shm 0/1 local 0 sum 1"), and leaves.
std::string join(const mt::InitOptions& options) {
  mt::init_process_group(options);
  std::string who = c10::str(mt::get_backend(), " ", mt::get_rank(), "/", mt::get_world_size(), " local ",
                             mt::get_local_rank());
  if (mt::get_world_size() == 1)
    who += c10::str(" sum ", mt::all_reduce(torch::ones({1}), "sum", {}).item<float>());
  mt::destroy_process_group();
  EXPECT_FALSE(mt::is_initialized());
  return who;
}

TEST(Run, TakesTheNumberOfALauncherAlsoIfThatIsOne) {
  if (ranks_are_processes()) GTEST_SKIP() << "starts ranks of its own";
  const Environment one_process(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  std::atomic<int> ranks = 0;
  mt::run(0, [&](int) {
    ++ranks;
    EXPECT_EQ(mt::get_world_size(), 1);
  });
  EXPECT_EQ(ranks, 1);
  mt::run(3, [](int) { EXPECT_EQ(mt::get_world_size(), 3); });
}

constexpr const char* kHow =
    "\n  do: start the program with `meshtorch-run -n 4 ./program` or torchrun, or give rank and world_size";

TEST(Rendezvous, TheEnvironmentOfTorchrun) {
  const Environment guard({{"RANK", "0"},
                           {"WORLD_SIZE", "1"},
                           {"LOCAL_RANK", "0"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", "0"}});
  EXPECT_EQ(join({}), "shm 0/1 local 0 sum 1");
  EXPECT_EQ(join({.backend = "gloo"}), "gloo 0/1 local 0 sum 1");
}

TEST(Rendezvous, TheFakeBackendNeedsNoAddress) {
  const Environment guard({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}});
  EXPECT_EQ(join({.backend = "fake"}), "fake 5/8 local 1");
}

TEST(Rendezvous, MpiAndSlurmAreFallbacks) {
  using Variables = std::map<std::string, std::string>;
  const std::vector<Variables> launchers{
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
      {{"MV2_COMM_WORLD_RANK", "3"}, {"MV2_COMM_WORLD_SIZE", "4"}, {"MV2_COMM_WORLD_LOCAL_RANK", "1"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}},
      {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}}};
  for (Variables variables : launchers) {
    SCOPED_TRACE(variables.begin()->first);
    {
      const Environment guard(variables);
      EXPECT_EQ(join({.backend = "fake"}), "fake 3/4 local 1");
    }
    variables.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    const Environment guard(variables);
    EXPECT_EQ(join({.backend = "fake"}), "fake 0/2 local 0") << "RANK and WORLD_SIZE come first";
  }
}

TEST(Rendezvous, SlurmNamesTheHost) {
  const Environment guard({{"SLURM_PROCID", "0"},
                           {"SLURM_NTASKS", "1"},
                           {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
                           {"MASTER_PORT", "0"}});
  EXPECT_EQ(join({}), "shm 0/1 local 0 sum 1");
}

TEST(Rendezvous, AMissingOrContradictoryVariableIsNamed) {
  struct VariablesCase {
    std::map<std::string, std::string> variables;
    std::string error;
    mt::InitOptions options = {};
  };
  const std::vector<VariablesCase> cases{
      {{}, std::string("meshtorch: RANK is not set, and no rank was given") + kHow},
      {{{"RANK", "0"}}, std::string("meshtorch: RANK is set but WORLD_SIZE is not") + kHow},
      {{{"WORLD_SIZE", "2"}}, std::string("meshtorch: WORLD_SIZE is set but RANK is not") + kHow},
      {{{"SLURM_PROCID", "0"}}, std::string("meshtorch: SLURM_PROCID is set but SLURM_NTASKS is not") + kHow},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, std::string("meshtorch: MASTER_ADDR is not set") + kHow},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}},
       std::string("meshtorch: MASTER_PORT is not set") + kHow},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}},
       "meshtorch: RANK is \"one\", which is not a whole number\n  do: give a number of 0 or more"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
       "meshtorch: RANK is \"-1\", which is not a whole number\n  do: give a number of 0 or more"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}},
       "meshtorch: rank 2 (RANK) is not below the world size 2 (WORLD_SIZE)\n  do: number the ranks from 0"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}},
       "meshtorch: the world size is 0 by WORLD_SIZE\n  do: give the number of ranks"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "5"}},
       "meshtorch: LOCAL_RANK is 5, which is not below the world size 2 (WORLD_SIZE)\n  do: number the ranks "
       "of a machine from 0"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "70000"}},
       "meshtorch: port 70000 (MASTER_PORT) is not below 65536\n  do: give a free port"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}},
       "meshtorch: the rank is 0 by options.rank, but 1 by RANK\n  do: make them agree, or give one of them "
       "only",
       {.rank = 0}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}},
       "meshtorch: the world size is 3 by options.world_size, but 2 by WORLD_SIZE\n  do: make them agree, or "
       "give one of them only",
       {.world_size = 3}},
  };
  for (const VariablesCase& c : cases) {
    const Environment guard(c.variables);
    EXPECT_EQ(error_of([&] { mt::init_process_group(c.options); }), c.error);
    EXPECT_FALSE(mt::is_initialized());
  }
}

TEST(Rendezvous, Addresses) {
  const Environment guard({});
  const auto file =
      std::filesystem::temp_directory_path() / ("meshtorch_rendezvous_" + std::to_string(getpid()));
  const std::string address = "file://" + file.string();
  EXPECT_EQ(join({.init_method = address, .rank = 0, .world_size = 1}), "shm 0/1 local 0 sum 1");
  std::filesystem::remove(file);
  EXPECT_EQ(join({.init_method = address + "?rank=0&world_size=1"}), "shm 0/1 local 0 sum 1");
  std::filesystem::remove(file);
  EXPECT_EQ(join({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"}), "shm 0/1 local 0 sum 1");
  EXPECT_EQ(join({.init_method = "tcp://127.0.0.1:0", .rank = 0, .world_size = 1}), "shm 0/1 local 0 sum 1");
}

TEST(Rendezvous, WrongAddressesSayWhatIsWrong) {
  const Environment guard({});
  const auto error = [](const std::string& address) {
    return error_of([&] { mt::init_process_group({.init_method = address, .rank = 0, .world_size = 1}); });
  };
  EXPECT_EQ(error("127.0.0.1:1"),
            "meshtorch: init_method \"127.0.0.1:1\" has no scheme\n  do: use env://, tcp://host:port, "
            "file:///path or threads://name");
  EXPECT_EQ(
      error("udp://host:1"),
      "meshtorch: unknown init_method scheme \"udp\"\n  do: use env://, tcp://host:port or file:///path");
  EXPECT_EQ(error("tcp://host"),
            "meshtorch: init_method tcp://host has no port\n  do: write tcp://host:port");
  EXPECT_EQ(error("tcp://host:x"),
            "meshtorch: the port in init_method is \"x\", which is not a whole number\n  do: give a number "
            "of 0 or more");
  EXPECT_EQ(error("file://"), "meshtorch: init_method file:// names no file\n  do: write file:///path");
  EXPECT_EQ(error("tcp://host:1?rank"),
            "meshtorch: \"rank\" in init_method \"tcp://host:1?rank\" is not of the form key=value");
  EXPECT_EQ(error("tcp://host:1?rank=1&world_size=1"),
            "meshtorch: the rank is 0 by options.rank, but 1 by init_method\n  do: make them agree, or give "
            "one of them only");
}

TEST(Rendezvous, AStoreOfTheCallers) {
  const Environment guard({});
  const auto store = c10::make_intrusive<c10d::HashStore>();
  mt::init_process_group(store, {.backend = "gloo", .rank = 0, .world_size = 1});
  EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({2}), "sum", {}), torch::ones({2})));
  EXPECT_EQ(error_of([&] { mt::init_process_group(store, {.backend = "gloo", .rank = 0, .world_size = 1}); }),
            "meshtorch: init_process_group was called twice on this rank\n  do: call destroy_process_group() "
            "first");
  mt::destroy_process_group();
  EXPECT_EQ(error_of([&] { mt::init_process_group(store, {}); }),
            "meshtorch: init_process_group with a store needs options.rank and options.world_size, got -1 "
            "and -1\n  do: give a "
            "world_size of 1 or more and a rank below it");
}

TEST(Rendezvous, ThreadsOfTheUsersOwn) {
  const Environment guard({});
  for (int round = 0; round < 3; ++round) {  // a name can be used again
    std::atomic<int> right = 0;
    const auto run = [&](int rank) {
      mt::init_process_group({.init_method = "threads://mine", .rank = rank, .world_size = 3});
      EXPECT_EQ(mt::get_backend(), "threads");
      if (torch::equal(mt::all_reduce(torch::full({2}, rank), "sum", {}), torch::full({2}, 3))) ++right;
      mt::destroy_process_group();
    };
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(run, rank);
    ranks.clear();
    EXPECT_EQ(right, 3);
  }
}

TEST(Rendezvous, ThreadsThatLeaveAreNotWaitedFor) {
  const Environment guard({});
  const mt::InitOptions options{.init_method = "threads://leaver", .world_size = 2};
  std::promise<void> joined;
  std::jthread leaver([&] {
    auto mine = options;
    mine.rank = 1;
    mt::init_process_group(mine);
    joined.get_future().wait();
    mt::destroy_process_group();
  });
  auto mine = options;
  mine.rank = 0;
  mt::init_process_group(mine);
  std::jthread([&] {
    EXPECT_EQ(error_of([&] { mt::init_process_group(mine); }),
              "meshtorch: two threads joined one world as rank 0\n  do: give each thread a rank of its own");
  }).join();
  joined.set_value();
  EXPECT_NE(error_of([] { mt::barrier(); }).find("rank 1 has already returned"), std::string::npos);
  mt::destroy_process_group();
}

TEST(Rendezvous, BeforeJoiningEverythingSaysSo) {
  const Environment guard({});
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [] { mt::get_rank(); }, [] { mt::barrier(); }, [] { mt::init_device_mesh(torch::kCPU, {1}); },
           [] { mt::destroy_process_group(); }}) {
    EXPECT_EQ(error_of(call),
              "meshtorch: this rank has not joined a world of ranks\n  do: call init_process_group() first, "
              "or run inside spawn(n, fn)");
  }
  EXPECT_EQ(error_of([] { mt::init_process_group({.backend = "mpi"}); }),
            "meshtorch: unknown backend \"mpi\"\n  do: use threads, shm, gloo, fake or nccl");
}

TEST(Rendezvous, ABackendThatCannotWorkHereSaysSoBeforeItLooksForOtherRanks) {
  if (torch::hasCUDA() && torch::cuda::is_available()) GTEST_SKIP() << "this machine has a CUDA device";
  const Environment guard({});
  const std::string error =
      error_of([] { mt::init_process_group({.backend = "nccl", .rank = 0, .world_size = 2}); });
  EXPECT_TRUE(error.starts_with("meshtorch: backend nccl ")) << error;
  EXPECT_NE(error.find("\n  do: use shm or gloo, or "), std::string::npos) << error;
}

// A loopback socket of this process, and the addresses at which something listens at its port.
class PortOfThisTest {
 public:
  PortOfThisTest() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int on = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = ntohs(address.sin_port);
  }
  ~PortOfThisTest() { ::close(socket_); }
  PortOfThisTest(const PortOfThisTest&) = delete;
  PortOfThisTest& operator=(const PortOfThisTest&) = delete;

  int number() const { return number_; }
  void listen() const { EXPECT_EQ(::listen(socket_, 1), 0); }
  std::vector<std::string> listeners() const {
    std::vector<std::string> found;
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream in(table);
      std::string line, number, local, remote, state;
      std::getline(in, line);
      while (std::getline(in, line)) {
        std::istringstream(line) >> number >> local >> remote >> state;
        const std::size_t colon = local.find(':');
        if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == number_)
          found.push_back(local.substr(0, colon));
      }
    }
    return found;
  }

 private:
  int socket_;
  int number_ = 0;
};

TEST(Rendezvous, TheStoreOfALoopbackAddressListensThereOnly) {
  const Environment none({});
  const PortOfThisTest port;
  mt::init_process_group(
      {.init_method = c10::str("tcp://127.0.0.1:", port.number()), .rank = 0, .world_size = 1});
  EXPECT_EQ(port.listeners(), std::vector<std::string>{"0100007F"});
  mt::destroy_process_group();
}

TEST(Rendezvous, ARankOfAnotherRunIsToldSo) {
  if (ranks_are_processes()) GTEST_SKIP() << "the test starts a process of its own";
  const auto file = std::filesystem::temp_directory_path() / c10::str("meshtorch_secret_", getpid());
  using Variables = std::map<std::string, std::string>;
  const Environment ours(Variables{{"MESHTORCH_SECRET", "ours"}});
  const mt::InitOptions rank_0{
      .backend = "gloo", .init_method = "file://" + file.string(), .rank = 0, .world_size = 1};
  mt::init_process_group(rank_0);
  {
    const Environment theirs(Variables{{"MESHTORCH_SECRET", "theirs"}});
    const mt::InitOptions rank_1{
        .backend = "gloo", .init_method = "file://" + file.string(), .rank = 1, .world_size = 2};
    EXPECT_EQ(
        error_of([&] { mt::init_process_group(rank_1); }),
        "meshtorch: rank 1 has another secret (MESHTORCH_SECRET) than rank 0: it is not of the same run\n  "
        "do: give each run an address of its own, and all ranks of a run the same secret");
  }
  mt::destroy_process_group();
  std::filesystem::remove(file);
}

TEST(Rendezvous, APortInUseSaysWhatToDo) {
  const Environment none({});
  const PortOfThisTest port;
  port.listen();
  EXPECT_EQ(
      error_of([&] {
        mt::init_process_group(
            {.init_method = c10::str("tcp://127.0.0.1:", port.number()), .rank = 0, .world_size = 1});
      }),
      c10::str("meshtorch: rank 0 cannot listen at 127.0.0.1:", port.number(),
               " (init_method): Address already in use\n  do: give a port that no other program uses, or "
               "let meshtorch-run find one"));
}

// It has none of the threads that groups and stores need, and its end is not that of the rank.
TEST(Rendezvous, AForkedChildIsNoRank) {
  if (!ranks_are_processes()) GTEST_SKIP() << "a thread that forks leaves the others behind";
  on_ranks(2, [](int rank) {
    mt::barrier();
    const pid_t child = ::fork();
    if (child == 0) std::exit(mt::is_initialized() ? 1 : 0);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(mt::all_reduce(torch::full({1}, rank + 1), "sum", mt::Group()).item<int64_t>(), 3);
  });
}

}  // namespace
}  // namespace meshtorch::testing
