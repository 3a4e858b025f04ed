// meshtorch-llama train --report: the page is there at the end, after a failure, and after Ctrl-C.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../unit/temporary_file.h"
#include "llama_command.h"

namespace llama {
namespace {

// The JSON inside a page.
nlohmann::json data_of(const std::filesystem::path& page) {
  std::ifstream in(page);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string begin_mark = "id=\"data\">";
  const std::size_t begin = text.find(begin_mark);
  if (begin == std::string::npos) return nullptr;
  return nlohmann::json::parse(
      text.substr(begin + begin_mark.size(), text.find("</script>", begin) - begin - begin_mark.size()));
}

TEST(TrainReport, HoldsEverySectionOnThreadsAndProcesses) {
  for (const bool processes : {false, true}) {
    const TemporaryFile page("run.html");
    train_tiny({2, 2, processes}, "--steps 5 --report " + page.path().string());
    const nlohmann::json data = data_of(page.path());
    for (const char* section :
         {"mesh", "modules", "communication", "redistributions", "trace", "training", "memory"})
      EXPECT_TRUE(data.contains(section)) << section;
    EXPECT_EQ(data.at("training").at("step").size(), 5u);
    EXPECT_EQ(data.at("trace").at("ranks").size(), 4u);
    ASSERT_EQ(data.at("memory").at("ranks").size(), 4u);
    for (const auto& rank : data.at("memory").at("ranks")) {
      const auto kept = rank.at("parameters").get<std::int64_t>() + rank.at("optimizer").get<std::int64_t>() +
                        rank.at("activations").get<std::int64_t>();
      EXPECT_GT(rank.at("activations"), 0);
      EXPECT_GE(rank.at("measured_peak"), kept) << "they are there when the backward pass begins";
    }
  }
}

TEST(TrainReport, ARunOfOneStepHasAllOfItToo) {
  const TemporaryFile page("run.html");
  train_tiny({1, 2}, "--steps 1 --report " + page.path().string());
  const nlohmann::json data = data_of(page.path());
  for (const char* section : {"communication", "trace", "training", "memory"})
    EXPECT_TRUE(data.contains(section)) << section;
}

TEST(TrainReport, AFolderThatIsMissingIsAnErrorBeforeTheFirstStep) {
  const CommandResult result =
      run_llama({1, 2}, "train --data " MESHTORCH_DEMO_TEXT
                        " --hidden-size 16 --layers 1 --report /no/such/folder/run.html");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output,
            "meshtorch-llama: cannot write the report /no/such/folder/run.html: there is no folder "
            "/no/such/folder\n"
            "  option --report\n  do: name a file in a folder that exists\n");
}

TEST(TrainReport, IsWrittenWhenTheTrainingFails) {
  const TemporaryFile page("run.html");
  const CommandResult result = run_llama(
      {1, 2},
      "train --data " MESHTORCH_DEMO_TEXT
      " --steps 9 --hidden-size 16 --layers 1 --warmup 0 --learning-rate 1e36 --clip 0 --checkpoint " +
          (page.path().parent_path() / "state").string() + " --report " + page.path().string());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(data_of(page.path()).at("training").at("step").size(), 1u);
}

// Starts the program, waits for a line of its output that says so, interrupts it, and gives how it ended.
int status_after_interruption(const std::vector<std::string>& arguments, const std::string& line) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::string output;
  char buffer[256];
  while (output.find(line) == std::string::npos) {
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    if (n <= 0) break;
    output.append(buffer, static_cast<std::size_t>(n));
  }
  EXPECT_NE(output.find(line), std::string::npos) << output;
  kill(child, SIGINT);
  while (read(ends[0], buffer, sizeof buffer) > 0) {
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(TrainReport, IsWrittenOnCtrlCAndTheProcessEndsAsByIt) {
  const TemporaryFile page("run.html");
  const int status = status_after_interruption({MESHTORCH_LLAMA_BINARY,
                                                "train",
                                                "--data",
                                                MESHTORCH_DEMO_TEXT,
                                                "--steps",
                                                "1000000",
                                                "--print-every",
                                                "1",
                                                "--hidden-size",
                                                "16",
                                                "--layers",
                                                "1",
                                                "--batch-size",
                                                "4",
                                                "--sequence-length",
                                                "8",
                                                "--dp",
                                                "2",
                                                "--tp",
                                                "2",
                                                "--threads",
                                                "--report",
                                                page.path().string()},
                                               "step       4/1000000");
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  const nlohmann::json data = data_of(page.path());
  EXPECT_GE(data.at("training").at("step").size(), 4u);
  EXPECT_TRUE(data.contains("trace"));
  EXPECT_NE(data.at("facts").dump().find("of 1000000 are done"), std::string::npos);
}

}  // namespace
}  // namespace llama
