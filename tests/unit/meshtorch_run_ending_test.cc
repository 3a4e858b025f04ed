// How a run under meshtorch-run ends: failures, signals, timeouts, and that no process is ever
// left.
#include <signal.h>

#include <string>
#include <vector>

#include "meshtorch_run_process.h"

namespace meshtorch::run_test {
namespace {

Words shell(Words options, const std::string& command) {
  options.insert(options.end(), {"/bin/sh", "-c", command});
  return options;
}

// Each rank signs, and so does a process that it starts: 2 pids a rank. Rank 1 then does the given
// thing.
std::string family(const Noticeboard& board, const std::string& act_of_rank_1) {
  return "(" + board.sign("child.$RANK") + "exec sleep 30) & " + board.sign("rank.$RANK") +
         "if [ $RANK = 1 ]; then while [ $(ls " + board.path() +
         "/*.pid | wc -l) -lt 8 ]; do sleep 0.01; done; " + act_of_rank_1 + "; fi; wait";
}

TEST(RunFailure, FirstFailingRankIsNamedAndItsCodePassedOn) {
  const Noticeboard board;
  LauncherProcess launcher(shell({"-n", "4"}, family(board, "exit 3")));
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 3);
  const std::vector<pid_t> pids = board.wait_for(8);
  std::string expected;
  for (const pid_t pid : pids)
    if (contains(result.err, "(pid " + std::to_string(pid) + ")"))
      expected = "meshtorch-run: rank 1 (pid " + std::to_string(pid) + ") exited with code 3\n";
  EXPECT_EQ(result.err, expected + "meshtorch-run: ended ranks 0, 2, 3\n");
  expect_gone(pids);
}

TEST(RunFailure, RankEndedByASignalGives128PlusTheSignal) {
  const Result result =
      run(shell({"-n", "2"}, "if [ $RANK = 0 ]; then ulimit -c 0; kill -SEGV $$; fi; exec sleep 30"));
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_TRUE(contains(result.err, ") was ended by signal 11 (Segmentation fault)\n")) << result.err;
  EXPECT_TRUE(contains(result.err, "meshtorch-run: ended rank 1\n")) << result.err;
}

TEST(RunFailure, KilledRankHintsAtMemory) {
  const Result result = run(shell({"-n", "1"}, "kill -KILL $$"));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(
      contains(result.err, "signal 9 (Killed)\n  do: if nobody killed it, it may have run out of memory"))
      << result.err;
}

TEST(RunFailure, RankThatIgnoresSigtermIsKilledAfterTheGrace) {
  const Noticeboard board;
  LauncherProcess launcher(shell({"-n", "4", "--grace", "0.2"}, "trap '' TERM; " + family(board, "exit 5")));
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(contains(result.err, "meshtorch-run: killed ranks 0, 2, 3, which had not ended when told to\n"))
      << result.err;
  expect_gone(board.wait_for(8));
}

TEST(RunFailure, RankThatEndsWellDoesNotEndTheOthers) {
  const Result result = run(shell({"-n", "2"}, "[ $RANK = 0 ] || sleep 0.2; echo end"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[rank 0] end\n[rank 1] end\n");
}

TEST(RunFailure, ProcessThatLeftItsGroupIsEndedToo) {
  const Noticeboard board;
  const std::string stay = "echo $$ > " + board.path() + "/a.new; mv " + board.path() + "/a.new " +
                           board.path() + "/a.pid; exec sleep 30";
  LauncherProcess launcher(shell({"-n", "1"}, "setsid sh -c '" + stay + "' & while [ ! -e " + board.path() +
                                                  "/a.pid ]; do sleep 0.01; done; echo done"));
  const Result left = launcher.wait();
  EXPECT_EQ(left.exit_code, 0);
  EXPECT_EQ(left.out, "[rank 0] done\n");
  EXPECT_TRUE(contains(left.err, "left processes behind")) << left.err;
  expect_gone(board.wait_for(1));
}

TEST(RunExec, MissingProgramIsReportedOnce) {
  const Result result = run({"-n", "3", "./no/such/program"});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_EQ(result.err,
            "meshtorch-run: cannot run `./no/such/program`.\n  No such file or directory\n"
            "  do: check the path; it is read from the folder where meshtorch-run was started\n");
}

TEST(RunExec, ProgramNotOnPathIsReported) {
  const Result result = run({"-n", "1", "no-such-program"});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_TRUE(contains(result.err, "do: put it on PATH, or give its path, for instance ./no-such-program"));
}

TEST(RunExec, MissingInterpreterIsReported) {
  const Noticeboard board;
  const std::string script = board.path() + "/script";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const Result result = run({"-n", "1", script});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_TRUE(contains(result.err, "check the interpreter in its first line")) << result.err;
}

TEST(RunExec, FileThatIsNotExecutableIsReportedOnce) {
  const Noticeboard board;
  std::ofstream(board.path() + "/data") << "x";
  const Result result = run({"-n", "3", board.path() + "/data"});
  EXPECT_EQ(result.exit_code, 126);
  EXPECT_EQ(result.err,
            "meshtorch-run: cannot run `" + board.path() +
                "/data`.\n  Permission denied\n"
                "  do: check the file: is it executable (chmod +x) and built for this machine?\n");
}

// Runs a shell command in which $0 is the launcher and $1 a command for its ranks.
Result run_around(const std::string& command, const std::string& rank_command) {
  return run({"-n", "1", "--no-prefix", "sh", "-c", command, MESHTORCH_RUN_BINARY, rank_command});
}

TEST(RunLimits, TooFewDescriptorsForAllRanksEndsThoseThatStarted) {
  const Noticeboard board;
  const Result result =
      run_around("ulimit -n 40; exec \"$0\" -n 40 sh -c \"$1\"", board.sign("rank.$RANK") + "exec sleep 30");
  EXPECT_EQ(result.exit_code, 125);
  EXPECT_TRUE(contains(result.err, "meshtorch-run: cannot start 40 processes.\n  number "));
  EXPECT_TRUE(contains(result.err, " failed: pipe: Too many open files\n  do: start fewer, or raise"));
  expect_gone(board.pids());
}

TEST(RunLimits, OutputThatCannotBeWrittenEndsTheRun) {
  const Result result = run_around("exec \"$0\" -n 1 sh -c \"$1\" > /dev/full", "echo x; exec sleep 30");
  EXPECT_EQ(result.exit_code, 125);
  EXPECT_TRUE(contains(result.err, "cannot write the output: No space left on device; ending all"))
      << result.err;
}

class RunSignal : public testing::TestWithParam<int> {};

TEST_P(RunSignal, ReachesEveryRankAndEndsAll) {
  const int number = GetParam();
  const Noticeboard board;
  const std::string trap = "trap 'echo got it; exit 0' " + std::to_string(number) + "; ";
  LauncherProcess launcher(
      shell({"-n", "3"}, trap + board.sign("rank.$RANK") + "while :; do sleep 0.05; done"));
  const std::vector<pid_t> pids = board.wait_for(3);
  launcher.send(number);
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + number);
  EXPECT_EQ(lines_of(result.out).size(), 3U) << result.out;
  EXPECT_TRUE(contains(result.err, "meshtorch-run: got signal " + std::to_string(number))) << result.err;
  EXPECT_TRUE(contains(result.err, "meshtorch-run: ended ranks 0, 1, 2\n")) << result.err;
  expect_gone(pids);
}

INSTANTIATE_TEST_SUITE_P(, RunSignal, testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& test) { return "Number" + std::to_string(test.param); });

TEST(RunSignals, StubbornRanksAreKilledAfterTheGrace) {
  const Noticeboard board;
  LauncherProcess launcher(shell({"-n", "2", "--grace", "0.2"}, "trap '' INT; " + board.sign("rank.$RANK") +
                                                                    "while :; do sleep 0.05; done"));
  const std::vector<pid_t> pids = board.wait_for(2);
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGINT);
  expect_gone(pids);
}

TEST(RunSignals, ASecondInterruptKillsAtOnce) {
  const Noticeboard board;
  LauncherProcess launcher(shell({"-n", "2", "--grace", "60"}, "trap '' INT; " + board.sign("rank.$RANK") +
                                                                   "while :; do sleep 0.05; done"));
  const std::vector<pid_t> pids = board.wait_for(2);
  // Interrupts that follow at once count as one, of a terminal that signals a whole group: send until one is
  // the second.
  EXPECT_TRUE(wait_until([&] {
    launcher.send(SIGINT);
    return !launcher.is_running();
  }));
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGINT);
  expect_gone(pids);
}

TEST(RunSignals, HangUpIsIgnoredUnderNohup) {
  LauncherProcess launcher(shell({"-n", "1", "nohup", MESHTORCH_RUN_BINARY, "-n", "1"},
                                 "kill -HUP $PPID; sleep 0.1; echo still here"));
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[rank 0] [rank 0] still here\n");
}

TEST(RunSignals, KillingTheLauncherLeavesNoProcess) {
  const Noticeboard board;
  LauncherProcess launcher(shell({"-n", "4"}, family(board, ":")));
  const std::vector<pid_t> pids = board.wait_for(8);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait_without_reading(), -SIGKILL);
  expect_gone(pids, kBound);
}

TEST(RunKilled, WhatHasASessionOfItsOwnEndsToo) {
  const Noticeboard board;
  const std::string script = board.path() + "/script";
  std::ofstream(script) << board.sign("own.$RANK") << "exec sleep 30\n";
  LauncherProcess launcher(shell({"-n", "2"}, "setsid sh " + script + " & wait"));
  const std::vector<pid_t> pids = board.wait_for(2);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait_without_reading(), -SIGKILL);
  expect_gone(pids, kBound);
}

TEST(RunSecret, IsInTheEnvironmentAndAnotherOneInEachRun) {
  const auto secret = [] { return run(shell({"-n", "1", "--no-prefix"}, "echo $MESHTORCH_SECRET")).out; };
  const std::string first = secret();
  EXPECT_EQ(first.size(), 33u) << first;
  EXPECT_NE(first, secret());
}

TEST(RunTimeout, NamesTheRanksThatStillRan) {
  const Noticeboard board;
  const Result result = run(shell({"-n", "4", "--timeout", "3"},
                                  "[ $RANK = 2 ] && exit 0; " + board.sign("rank.$RANK") + "exec sleep 30"));
  EXPECT_EQ(result.exit_code, 124);
  EXPECT_EQ(result.err,
            "meshtorch-run: timeout: after 3 s still running: ranks 0, 1, 3; ending all ranks\n"
            "meshtorch-run: ended ranks 0, 1, 3\n");
  expect_gone(board.pids());
}

TEST(RunTimeout, DoesNothingToARunThatEndsInTime) {
  EXPECT_EQ(run({"-n", "2", "--timeout", "30", "true"}).exit_code, 0);
}

TEST(RunRestarts, AllRanksAreStartedAgainAfterOneFailed) {
  const std::string fails_twice =
      "if [ $RANK = 1 ] && [ $MESHTORCH_RESTART -lt 2 ]; then exit 3; fi; echo run $MESHTORCH_RESTART at "
      "$MASTER_PORT; [ $MESHTORCH_RESTART = 2 ] || exec sleep 30";
  const Result result = run(shell({"-n", "2", "--max-restarts", "2"}, fails_twice));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "run 2 at ")) << result.out;
  EXPECT_TRUE(contains(result.err, "meshtorch-run: starting all ranks again, 2 of at most 2 times\n"))
      << result.err;
}

TEST(RunRestarts, AreAsManyAsAskedFor) {
  const Result result = run(shell({"-n", "2", "--max-restarts", "1"}, "exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_TRUE(contains(result.err, "again, 1 of at most 1 times\n")) << result.err;
  EXPECT_FALSE(contains(result.err, "again, 2 of")) << result.err;
}

TEST(RunRestarts, DoNotFollowATimeout) {
  const Result result =
      run(shell({"-n", "1", "--max-restarts", "5", "--timeout", "0.2", "--grace", "0.1"}, "exec sleep 30"));
  EXPECT_EQ(result.exit_code, 124);
  EXPECT_FALSE(contains(result.err, "again")) << result.err;
}

}  // namespace
}  // namespace meshtorch::run_test
