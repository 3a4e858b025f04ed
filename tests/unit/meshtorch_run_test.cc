// What meshtorch-run promises, seen from outside: options, environment, output, failures, no
// process left.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "meshtorch_run_process.h"

namespace meshtorch::run_test {
namespace {

Words sorted_lines(const std::string& text) {
  Words lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Runs a shell command as each rank.
Result run_shell(Words options, const std::string& command) {
  options.insert(options.end(), {"/bin/sh", "-c", command});
  return run(options);
}

TEST(RunOutput, EachLineCarriesItsRank) {
  const Result result = run_shell({"-n", "2"}, "echo hello; echo again");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(sorted_lines(result.out),
            (Words{"[rank 0] again", "[rank 0] hello", "[rank 1] again", "[rank 1] hello"}));
  EXPECT_EQ(result.err, "");
}

TEST(RunOutput, PrefixesAreAsWideAsTheWidestRank) {
  const Words lines = sorted_lines(run_shell({"-n", "11"}, "echo x").out);
  ASSERT_EQ(lines.size(), 11U);
  EXPECT_EQ(lines.front(), "[rank  0] x");
  EXPECT_EQ(lines.back(), "[rank 10] x");
}

TEST(RunOutput, StderrStaysStderr) {
  const Result result = run_shell({"-n", "1"}, "echo out; echo err >&2");
  EXPECT_EQ(result.out, "[rank 0] out\n");
  EXPECT_EQ(result.err, "[rank 0] err\n");
}

TEST(RunOutput, NoPrefixPassesLinesAsTheyAre) {
  EXPECT_EQ(run_shell({"-n", "1", "--no-prefix"}, "echo '  as is '").out, "  as is \n");
}

TEST(RunOutput, LastLineWithoutNewlineIsNotLost) {
  EXPECT_EQ(run_shell({"-n", "1"}, "printf 'a\\n\\nb'").out, "[rank 0] a\n[rank 0] \n[rank 0] b\n");
}

TEST(RunOutput, CarriageReturnsEndALineWithoutMovingDown) {
  EXPECT_EQ(run_shell({"-n", "1"}, "printf '\\r10%%\\r20%%\\rdone\\r\\n'").out,
            "[rank 0] 10%\r[rank 0] 20%\r[rank 0] done\r\n");
}

TEST(RunOutput, ProgressOfOneRankIsNotOverwrittenByAnother) {
  const Noticeboard board;
  const auto wait_for = [&](const std::string& name) {
    return "while [ ! -e " + board.path() + "/" + name + " ]; do sleep 0.01; done; ";
  };
  const auto leave = [&](const std::string& name) { return "touch " + board.path() + "/" + name + "; "; };
  const Result result =
      run_shell({"-n", "2"}, "if [ $RANK = 0 ]; then printf '10%%\\r'; " + leave("a") + wait_for("b") +
                                 "else " + wait_for("a") + "echo x; " + leave("b") + "fi");
  EXPECT_EQ(result.out, "[rank 0] 10%\r\n[rank 1] x\n");
}

TEST(RunOutput, FourBusyRanksLoseAndMixNothing) {
  constexpr int kLines = 20000;
  const std::string count = "seq -f \"line %.0f of $RANK, long enough to be cut in the middle\" 20000";
  const Result result = run_shell({"-n", "4"}, count + " & " + count + " >&2; wait");
  EXPECT_EQ(result.exit_code, 0);
  for (const std::string& text : {result.out, result.err}) {
    std::map<std::string, int> next;
    int wrong = 0;
    for (const std::string& line : lines_of(text)) {
      const std::string rank = line.substr(6, 1);
      const std::string number = std::to_string(++next[rank]);
      wrong += line !=
               "[rank " + rank + "] line " + number + " of " + rank + ", long enough to be cut in the middle";
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(next, (std::map<std::string, int>{{"0", kLines}, {"1", kLines}, {"2", kLines}, {"3", kLines}}));
  }
}

TEST(RunOutput, LastWordsOfAFailingRankComeBeforeItsName) {
  const Result result = run_shell({"-n", "1"}, "seq 5000 >&2; printf oops >&2; exit 1");
  const Words lines = lines_of(result.err);
  ASSERT_EQ(lines.size(), 5002U);
  EXPECT_EQ(lines[4999], "[rank 0] 5000");
  EXPECT_EQ(lines[5000], "[rank 0] oops");
  EXPECT_TRUE(contains(lines[5001], "rank 0 (pid ")) << lines[5001];
}

TEST(RunOutput, ReaderThatGoesAwayEndsTheRun) {
  LauncherProcess launcher({"-n", "2", "yes"});
  launcher.close_output();
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGPIPE);
}

TEST(RunOutput, ReaderThatDoesNotReadCannotHoldBackAnInterrupt) {
  LauncherProcess launcher({"-n", "2", "yes"});
  EXPECT_TRUE(wait_until([&] { return launcher.output_is_full(); }));
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait_without_reading(), 128 + SIGINT);
}

TEST(RunInput, OnlyRank0Reads) {
  const Result result = run({"-n", "2", "sh", "-c", "cat; echo end"}, "typed\n");
  EXPECT_EQ(sorted_lines(result.out), (Words{"[rank 0] end", "[rank 0] typed", "[rank 1] end"}));
}

TEST(RunEnvironment, OneMachine) {
  const Result result =
      run_shell({"-n", "2", "--no-prefix"},
                "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $MASTER_ADDR");
  EXPECT_EQ(sorted_lines(result.out), (Words{"0/2 0/2 0 0 127.0.0.1", "1/2 1/2 0 0 127.0.0.1"}));
}

TEST(RunEnvironment, SecondMachineOfTwo) {
  const Result result = run_shell(
      {"-n", "2", "--nnodes=2", "--node-rank", "1", "--master-addr", "10.1.2.3", "--master-port", "29500"},
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR:$MASTER_PORT");
  EXPECT_EQ(sorted_lines(result.out),
            (Words{"[rank 2] 2/4 0/2 1 10.1.2.3:29500", "[rank 3] 3/4 1/2 1 10.1.2.3:29500"}));
}

TEST(RunEnvironment, AllRanksGetTheSameFreePort) {
  const Words ports = lines_of(run_shell({"-n", "3", "--no-prefix"}, "echo $MASTER_PORT").out);
  ASSERT_EQ(ports.size(), 3U);
  EXPECT_EQ(std::set<std::string>(ports.begin(), ports.end()).size(), 1U);
  EXPECT_GE(std::stoi(ports[0]), 1024);
}

// Whether the loopback port can be bound, by a program that says that it reuses addresses or not.
bool can_bind(int port, bool reuses) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = reuses ? 1 : 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool can =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, /*backlog=*/1) == 0;
  close(fd);
  return can;
}

TEST(RunEnvironment, ThePortIsKeptForTheStoreOfTheRanks) {
  const Noticeboard board;
  const std::string port = board.path() + "/port", end = board.path() + "/end";
  LauncherProcess launcher({"-n", "1", "/bin/sh", "-c",
                            "echo $MASTER_PORT > " + port + ".new; mv " + port + ".new " + port +
                                "; while [ ! -e " + end + " ]; do sleep 0.01; done"});
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(port); }));
  int number = 0;
  std::ifstream(port) >> number;
  EXPECT_FALSE(can_bind(number, /*reuses=*/false));
  EXPECT_TRUE(can_bind(number, /*reuses=*/true));
  std::ofstream(end).put('\n');
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

TEST(RunEnvironment, ThreadsAreSharedOutUnlessSet) {
  const Result one = run_shell({"-n", "1"}, "test $OMP_NUM_THREADS -eq $(nproc) && echo all");
  EXPECT_EQ(one.out, "[rank 0] all\n");
  // The launcher's environment is reached through env, because the tests clear it.
  const Result set = run({"-n", "1", "env", "OMP_NUM_THREADS=7", MESHTORCH_RUN_BINARY, "--no-prefix", "-n",
                          "2", "sh", "-c", "echo $OMP_NUM_THREADS"});
  EXPECT_EQ(set.out, "[rank 0] 7\n[rank 0] 7\n");
}

TEST(RunArguments, BelongToTheProgramUnchanged) {
  const Words arguments = {"-n", "two words", "--grace", "", "--", "--help", "-", "a=b", "*"};
  const std::string expected = "[rank 0] <-n><two words><--grace><><--><--help><-><a=b><*>\n";
  for (Words words : {Words{"-n", "1"}, Words{"-n1", "--"}}) {
    words.insert(words.end(), {"printf", "<%s>"});
    words.insert(words.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(run(words).out, expected);
  }
}

TEST(RunOptions, HelpNamesTheVariables) {
  const Result result = run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part : {"-n", "--grace", "--timeout", "MASTER_PORT", "OMP_NUM_THREADS", "unless"})
    EXPECT_TRUE(contains(result.out, part)) << part;
}

TEST(RunOptions, VersionIsOneLine) {
  const Result result = run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("meshtorch-run ", 0), 0U);
}

struct Mistake {
  const char* name;
  Words words;
  std::string message;  // without the name of the program
};

void PrintTo(const Mistake& mistake, std::ostream* stream) { *stream << mistake.name; }

class RunMistake : public testing::TestWithParam<Mistake> {};

TEST_P(RunMistake, IsExplained) {
  const Result result = run(GetParam().words);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "meshtorch-run: " + GetParam().message + "\n");
}

const std::string kSeeHelp = "\n  among the options before the program\n  do: see meshtorch-run --help";
const std::string kExample = "\n  do: for instance meshtorch-run -n 4 ./program";

INSTANTIATE_TEST_SUITE_P(
    , RunMistake,
    testing::Values(
        Mistake{"NoNumber", {"true"}, "the number of processes is missing.\n  option -n" + kExample},
        Mistake{"NoProgram", {"-n", "2"}, "the program is missing.\n  after the options" + kExample},
        Mistake{"NoProcess",
                {"-n", "0", "true"},
                "there must be at least one process.\n  -n 0\n  do: give -n 1 or more"},
        Mistake{"NotANumber", {"-n", "x", "true"}, "Could not convert: --nproc-per-node = x" + kSeeHelp},
        Mistake{"UnknownOption",
                {"-n", "1", "--speed", "true"},
                "The following argument was not expected: --speed" + kSeeHelp},
        Mistake{"SeveralMachinesWithoutAddress",
                {"-n", "1", "--nnodes", "2", "--node-rank", "0", "true"},
                "several machines need --node-rank, --master-addr and --master-port.\n"
                "  --nnodes 2, without --master-addr, --master-port\n"
                "  do: give on every machine its own --node-rank, and the same address and free "
                "port of "
                "machine 0"},
        Mistake{"NoMachine",
                {"-n", "1", "--nnodes", "0", "true"},
                "there must be at least one machine.\n  --nnodes 0\n  do: give --nnodes 1 or more"},
        Mistake{"NoSuchMachine",
                {"-n", "1", "--node-rank", "1", "true"},
                "there is no such machine.\n  --node-rank 1, --nnodes 1\n"
                "  do: number the machines from 0 to --nnodes minus 1"},
        Mistake{"NoSuchPort",
                {"-n", "1", "--master-port", "65536", "true"},
                "there is no such port.\n  --master-port 65536\n  do: give a port from 1 to 65535"},
        Mistake{"EmptyAddress",
                {"-n", "1", "--master-addr", "", "true"},
                "the address is empty.\n  option --master-addr\n"
                "  do: give a host name or an IP address of machine 0"},
        Mistake{"TooMany",
                {"-n", "2000000", "true"},
                "that is more processes than this launcher counts.\n  -n 2000000, --nnodes 1\n"
                "  do: stay within 1048576 in all"},
        Mistake{"NegativeTime",
                {"-n", "1", "--grace=-1", "true"},
                "--grace is not a length of time.\n  --grace -1.000000\n"
                "  do: give a number of seconds that is 0 or more"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace meshtorch::run_test
