// Files from nobody knows where: each of the corpus tests/damaged, and each that is made here since it is
// large, is refused with an error that names it, in time and memory in proportion to its size.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "checkpoint/plan/index.h"
#include "safetensors/model_files.h"

namespace meshtorch::safetensors {
using namespace internal;
namespace {

namespace fs = std::filesystem;

class DamagedFiles : public ::testing::Test {
 protected:
  DamagedFiles() {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
  }
  ~DamagedFiles() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  const fs::path directory_ =
      fs::path(::testing::TempDir()) / ("damaged_files_" + std::to_string(::getpid()));
};

std::string with_header(const std::string& json, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(json.size() >> (8 * i)));
  return bytes + json + std::string(data_bytes, 'x');
}

std::string nested(const std::string& open, const std::string& close, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "0";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

// What refuses it, and all of its words.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_refused(const std::string& file, const std::string& what) {
  const std::string error = error_of([&] { ModelFiles{file}; });
  EXPECT_TRUE(error.starts_with("meshtorch: ")) << error;
  EXPECT_NE(error.find(what), std::string::npos) << error;
  EXPECT_NE(error.find("\n  in: " + file), std::string::npos) << error;
  EXPECT_NE(error.find("\n  do: "), std::string::npos) << error;
}

TEST_F(DamagedFiles, AHeaderThatIsNestedDeeply) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair(R"({"a":)", "}")}) {
    expect_refused(write("array", with_header(nested(open, close, 66'000), 0)), "the header is");
    const std::string inner = nested(open, close, 66'000);
    expect_refused(write("tensor", with_header(R"({"w":)" + inner + "}", 0)), "nested deeper than 64 levels");
    expect_refused(write("shape", with_header(R"({"w":{"dtype":"F32","shape":)" + inner + "}}", 0)),
                   "nested deeper than 64 levels");
    expect_refused(write("metadata", with_header(R"({"__metadata__":)" + inner + "}", 0)),
                   "nested deeper than 64 levels");
  }
}

TEST_F(DamagedFiles, AnIndexThatIsNestedDeeply) {
  const std::string deep = nested("[", "]", 66'000);
  write("model.safetensors.index.json", R"({"weight_map":)" + deep + "}");
  const std::string error = error_of([&] { ModelFiles{directory_.string()}; });
  EXPECT_NE(error.find("nested deeper than 64 levels"), std::string::npos) << error;
}

// The checksum is that of the body as text, so that a body of any depth would be walked through.
TEST_F(DamagedFiles, ACheckpointWhoseIndexIsNestedDeeply) {
  const std::string head =
      R"({"format":"meshtorch checkpoint","version":1,"checksum":"0123456789abcdef","body":)";
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair(R"({"a":)", "}")}) {
    for (const int depth : {66'000, 1'000'000}) {
      const std::string deep = nested(open, close, depth);
      for (const std::string& body :
           {deep, R"({"values":)" + deep + "}", R"({"tensors":{"w":)" + deep + "}}"}) {
        const std::string error =
            error_of([&] { checkpoint::internal::Index::from_text("checkpoint.json", head + body + "}"); });
        EXPECT_NE(error.find("nested deeper than 64 levels"), std::string::npos) << error;
      }
    }
  }
}

// Processor time, which other programs do not lengthen. In proportion to its square this header would take
// 20 s, and a multiple of that unoptimised.
TEST_F(DamagedFiles, AHeaderOfManyTensorsIsReadAndWrittenInLinearTime) {
  const auto time_of = [&](int count) {  // of the processor
    std::vector<StoredTensor> tensors;
    for (int i = 0; i < count; ++i)
      tensors.push_back({.name = "layer." + std::to_string(i), .dtype = "U8", .shape = {1}});
    const std::clock_t begin = std::clock();
    const std::string file = write("many", render_header(tensors, {}) + std::string(tensors.size(), 'x'));
    const ModelFiles files(file);
    EXPECT_EQ(files.names.size(), tensors.size());
    EXPECT_EQ(files.files[0]->header.tensors, tensors);
    return std::clock() - begin;
  };
  time_of(100);
  const std::clock_t few = time_of(5'000);
  EXPECT_LT(time_of(100'000), 100 * few);  // linear: 20 times, quadratic: 400 times
}

TEST_F(DamagedFiles, AFileThatIsCutWhileItIsRead) {
  std::vector<StoredTensor> tensors{{.name = "w", .dtype = "U8", .shape = {1 << 20}}};
  const std::string file = write("cut", render_header(tensors, {}) + std::string(1 << 20, 'x'));
  const OpenFile open(file);
  std::vector<std::byte> out(1 << 20);
  const auto read = [&](std::int64_t begin, std::int64_t end) {
    open.read(open.header.tensors[0], ShardIndices({1 << 20}, {{{0, 1 << 20}}}), begin, end, out.data());
  };
  read(0, 1 << 20);
  ASSERT_EQ(::truncate(file.c_str(), 4096), 0);
  for (const std::int64_t begin : {0, 1 << 19, (1 << 20) - 1}) {
    const std::string error = error_of([&] { read(begin, 1 << 20); });
    EXPECT_NE(error.find("and now ends before byte"), std::string::npos) << error;
    EXPECT_NE(error.find("\n  in: " + file + "\n  do: "), std::string::npos) << error;
  }
}

TEST_F(DamagedFiles, APipeOrADeviceInThePlaceOfAFile) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused(path("pipe"), "cannot read the file");
  expect_refused("/dev/zero", "cannot read the file");
  expect_refused(path("missing"), "cannot open the file");
}

TEST_F(DamagedFiles, AnIndexThatNamesNoFileBesideIt) {
  const fs::path corpus(MESHTORCH_DAMAGED_FILES);
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(corpus)) {
    if (!entry.is_directory()) continue;
    ++seen;
    const std::string error = error_of([&] { ModelFiles{entry.path().string()}; });
    EXPECT_NE(error.find("which is no file beside it"), std::string::npos) << entry.path() << error;
  }
  EXPECT_EQ(seen, 5);
}

TEST(DamagedCheckpointIndex, FilesAreBesideItAndShapesCountable) {
  checkpoint::internal::Index index;
  index.files["a"] = {.name = "a", .bytes = 1, .checksums = {1}};
  index.tensors["w"] = {.dtype = "F32", .shape = {1}, .chunks = {{"a", {{0}, {1}}}}};
  ASSERT_EQ(checkpoint::internal::Index::from_text("x", index.to_text()), index);
  for (const std::string& name :
       {std::string("a\0b", 3), std::string(), std::string(".."), std::string("/a")}) {
    checkpoint::internal::Index changed = index;
    changed.files["a"].name = name;
    const std::string error =
        error_of([&] { checkpoint::internal::Index::from_text("x", changed.to_text()); });
    EXPECT_NE(error.find("is no file beside the index"), std::string::npos) << error;
  }
  for (const Shape& shape : {Shape{1LL << 62, 4}, Shape{1LL << 32, 1LL << 32, 0}, Shape{-1}}) {
    checkpoint::internal::Index changed = index;
    changed.tensors["w"].shape = shape;
    const std::string error =
        error_of([&] { checkpoint::internal::Index::from_text("x", changed.to_text()); });
    EXPECT_NE(error.find("has a shape beyond all memory"), std::string::npos) << error;
  }
}

TEST(DamagedCheckpointIndex, SizesAreWholeNumbersThatFit) {
  using checkpoint::internal::Json;
  for (const char* number : {"1e300", "1.5", "18446744073709551615", "\"1\"", "null"}) {
    const Json box{{"offsets", {0}}, {"sizes", {Json::parse(number)}}};
    EXPECT_EQ(error_of([&] { checkpoint::internal::box_from(box); }),
              Json::parse(number).dump() + " is no whole number, or beyond those that it may be");
  }
  const Json file{{"name", "a"}, {"bytes", -1}, {"checksums", Json::array()}};
  EXPECT_EQ(error_of([&] { checkpoint::internal::data_file_from(file); }),
            "-1 is no whole number, or beyond those that it may be");
}

}  // namespace
}  // namespace meshtorch::safetensors
