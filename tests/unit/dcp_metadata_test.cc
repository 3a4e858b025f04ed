// The metadata of folders that torch.distributed.checkpoint wrote. tests/golden/dcp was saved by two ranks: w
// of float32 (5, 3), split by rows, b of bfloat16 (3), a tensor without dims, and a number.
#include "checkpoint/plan/dcp_metadata.h"

#include <gtest/gtest.h>

#include "../mutations.h"
#include "checkpoint/plan/pickle.h"
#include "safetensors/input_file.h"

namespace meshtorch::checkpoint::internal {
namespace {

using namespace std::literals;

std::string kept_metadata() {
  return safetensors::internal::InputFile(MESHTORCH_DCP_FOLDER "/.metadata").text();
}

std::string error_of(const std::string& bytes) {
  try {
    DcpMetadata::from_bytes("folder/.metadata", bytes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(DcpMetadata, SaysWhereTheChunksOfEachTensorLie) {
  const DcpMetadata metadata = DcpMetadata::from_bytes("folder/.metadata", kept_metadata());
  ASSERT_EQ(metadata.tensors.size(), 3U);
  EXPECT_EQ(metadata.others, std::vector<std::string>{"step"});
  const DcpTensor& w = metadata.tensors.at("model.w");
  EXPECT_EQ(w.dtype, "float32");
  EXPECT_EQ(w.shape, (Shape{5, 3}));
  ASSERT_EQ(w.chunks.size(), 2U);
  EXPECT_EQ(w.chunks[0].box.to_string(), "[0:3, 0:3]");
  EXPECT_EQ(w.chunks[1].box.to_string(), "[3:5, 0:3]");
  EXPECT_NE(w.chunks[0].file, w.chunks[1].file);
  EXPECT_GT(w.chunks[0].length, 0U);
  EXPECT_EQ(metadata.tensors.at("model.b").dtype, "bfloat16");
  EXPECT_EQ(metadata.tensors.at("number").shape, Shape{});
}

TEST(DcpMetadata, FilesOutsideTheFolderAreRefused) {
  EXPECT_NE(error_of(replaced(kept_metadata(), "__0_0.distcp", "../0.distcp.")).find("names the file"),
            std::string::npos);
}

TEST(DcpMetadata, AChunkWithoutAPlaceIsNamed) {
  std::string bytes = kept_metadata();
  const std::size_t places = bytes.find("storage_data");
  const std::string words =
      error_of(bytes.substr(0, places) + replaced(bytes.substr(places), "model.w", "model.x"));
  EXPECT_NE(words.find("a chunk of \"model.w\" has no place in a file"), std::string::npos) << words;
}

TEST(Pickles, AreDataOfWhichNothingIsCalled) {
  // os.system("ls"), as a pickle says it.
  const Pickle pickle = read_pickle("file",
                                    "\x80\x02"
                                    "cos\nsystem\nX\x02\x00\x00\x00ls\x85R."sv);
  EXPECT_EQ(pickle.root->kind, Pickled::Kind::object);
  EXPECT_EQ(pickle.root->text, "os.system");
  EXPECT_EQ(pickle.root->items.at(0)->text, "ls");
}

TEST(Pickles, MayBeNestedAsDeepAsTheyAreLong) {
  const std::size_t depth = 1'000'000;
  const Pickle pickle =
      read_pickle("file", "\x80\x02" + std::string(depth, ']') + std::string(depth - 1, 'a') + ".");
  EXPECT_EQ(pickle.values.size(), depth);
}

TEST(Pickles, NameTheByteThatIsNotUnderstood) {
  const auto error = [](std::string_view bytes) -> std::string {
    try {
      read_pickle("file", bytes);
    } catch (const std::invalid_argument& thrown) {
      return thrown.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(error("\x80\x02").find("it ends too early\n  in: file, byte 2"), std::string::npos);
  EXPECT_NE(error("\x80\x02Z.").find("operation 90"), std::string::npos);
  EXPECT_NE(error("\x80\x02N N.").find("operation 32"), std::string::npos);
  EXPECT_NE(error("\x80\x02NN.").find("something is left"), std::string::npos);
  EXPECT_NE(error("\x80\x02h\x05.").find("it refers to what it has not"), std::string::npos);
  EXPECT_NE(error("\x80\x02t.").find("a mark is missing"), std::string::npos);
}

TEST(Mutations, OfDcpMetadataAreReadOrRefused) {
  testing::expect_read_or_refused({kept_metadata()}, [](const std::string& bytes) {
    DcpMetadata::from_bytes("meshtorch's folder", bytes);
  });
}

}  // namespace
}  // namespace meshtorch::checkpoint::internal
