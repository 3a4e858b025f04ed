// Programs on the pages of the documentation are those that are compiled and run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(std::filesystem::path(MESHTORCH_SOURCES).parent_path() / path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ExamplesOnPages, AreTheProgramsThatAreRun) {
  const std::string program = text_of("examples/data_parallel.cc");
  const std::string without_comment = program.substr(program.find('\n') + 1);
  ASSERT_FALSE(without_comment.empty());
  EXPECT_NE(text_of("docs/data_parallel.md").find("```cpp\n" + without_comment + "```\n"), std::string::npos)
      << "do: copy examples/data_parallel.cc, but for its first line, to docs/data_parallel.md";
}

}  // namespace
