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
  for (const std::string name : {"data_parallel", "pipeline"}) {
    const std::string page = name == "pipeline" ? "docs/pipelines.md" : "docs/data_parallel.md";
    const std::string program = text_of("examples/" + name + ".cc");
    const std::string without_comment = program.substr(program.find('\n') + 1);
    ASSERT_FALSE(without_comment.empty());
    EXPECT_NE(text_of(page).find("```cpp\n" + without_comment + "```\n"), std::string::npos)
        << "do: copy examples/" << name << ".cc, but for its first line, to " << page;
  }
}

}  // namespace
