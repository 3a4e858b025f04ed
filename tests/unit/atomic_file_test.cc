// Files that appear only when they are complete, and what is said when they cannot be written.
#include "safetensors/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace meshtorch::safetensors {
using namespace internal;
namespace {

namespace fs = std::filesystem;

class AtomicFiles : public ::testing::Test {
 protected:
  AtomicFiles() {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
  }
  ~AtomicFiles() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const fs::path directory_ = fs::path(::testing::TempDir()) / ("atomic_file_" + std::to_string(::getpid()));
};

TEST_F(AtomicFiles, AppearWithCommit) {
  AtomicFile file(path("a"));
  file.append("one ");
  file.append("two");
  EXPECT_FALSE(fs::exists(path("a")));
  file.commit();
  EXPECT_EQ(content(path("a")), "one two");
  EXPECT_FALSE(fs::exists(temporary_name(path("a"))));
}

TEST_F(AtomicFiles, LeaveTheOldOneWithoutCommit) {
  {
    AtomicFile(path("a")).append("new");
  }
  EXPECT_TRUE(fs::is_empty(directory_));
  std::ofstream(path("a")) << "old";
  {
    AtomicFile(path("a")).append("new");
  }
  EXPECT_EQ(content(path("a")), "old");
}

TEST_F(AtomicFiles, SayWhyTheyCannotBeCreated) {
  try {
    const AtomicFile file(path("missing/a"));
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), "meshtorch: cannot create the file: No such file or directory\n  in: " +
                                path("missing/a.tmp") + "\n  do: check the path");
  }
}

TEST_F(AtomicFiles, SayThatTheDiskIsFull) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  try {
    write_all(full, "x", std::as_bytes(std::span(std::string_view("bytes"))), 0);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "meshtorch: cannot write the file: No space left on device\n  in: x\n  do: free space, or "
                 "choose another directory");
  }
  ::close(full);
}

}  // namespace
}  // namespace meshtorch::safetensors
