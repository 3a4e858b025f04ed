// The plan of a checkpoint: boxes, who writes them, the index and its checksums.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "checkpoint/plan/assign.h"
#include "checkpoint/plan/index.h"

namespace meshtorch::checkpoint {
using namespace internal;
namespace {

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// What every rank of a mesh holds of one tensor.
std::vector<std::vector<Holding>> holdings(const Shape& shape, const Placements& placements,
                                           const Shape& mesh) {
  std::vector<std::vector<Holding>> all;
  for (std::int64_t i = 0; i < mesh[0]; ++i) {
    for (std::int64_t j = 0; j < mesh[1]; ++j) {
      const auto held = held_in_each_dim(shape, placements, mesh, {i, j});
      all.push_back({{.name = "w", .dtype = "F32", .shape = shape, .boxes = boxes_of(held)}});
    }
  }
  return all;
}

TEST(CheckpointBox, HeldRangesBecomeBoxes) {
  EXPECT_EQ(boxes_of({}), (std::vector<Box>{{{}, {}}}));
  EXPECT_EQ(boxes_of({{{0, 2}}, {}}), std::vector<Box>{});
  EXPECT_EQ(boxes_of({{{0, 2}, {4, 1}}, {{3, 5}}}), (std::vector<Box>{{{0, 3}, {2, 5}}, {{4, 3}, {1, 5}}}));
  EXPECT_EQ((Box{{0, 3}, {2, 5}}).to_string(), "[0:2, 3:8]");
  EXPECT_EQ(Box{}.to_string(), "[]");
}

TEST(CheckpointBox, WhatFallsIntoABoxIsOneBoxOfTheLocalTensor) {
  const Overlap overlap = overlap_of({{{0, 2}, {4, 2}, {8, 2}}}, {{1}, {8}});
  EXPECT_EQ(overlap.local, (Box{{1}, {4}}));
  EXPECT_EQ(overlap.inside, (std::vector<std::vector<Range>>{{{0, 1}, {3, 2}, {7, 1}}}));
  EXPECT_EQ(overlap_of({{{0, 2}}}, {{2}, {3}}).local.count(), 0);
  EXPECT_EQ(overlap_of({}, {{}, {}}).local.count(), 1);
}

TEST(CheckpointAssign, EveryElementIsWrittenOnceByARankThatHoldsIt) {
  const std::vector<Placement> choices{Replicate(), Shard(0), Shard(1), StridedShard(1, 2)};
  for (const Placement& a : choices) {
    for (const Placement& b : choices) {
      for (const Shape& shape : {Shape{5, 7}, Shape{1, 9}, Shape{0, 3}}) {
        const auto of_ranks = holdings(shape, {a, b}, {2, 3});
        const Assignment assignment = assign(of_ranks);
        std::int64_t written = 0;
        for (const OwnedBox& owned : assignment.at("w").boxes) {
          const auto& held = of_ranks[static_cast<std::size_t>(owned.owner)][0].boxes;
          EXPECT_NE(std::find(held.begin(), held.end(), owned.box), held.end());
          written += owned.box.count();
        }
        EXPECT_EQ(written, shape[0] * shape[1]);
      }
    }
  }
}

TEST(CheckpointAssign, ReplicasAreSharedOutEvenly) {
  std::vector<Holding> all;
  for (int i = 0; i < 8; ++i)
    all.push_back({.name = std::to_string(i), .dtype = "F32", .shape = {10}, .boxes = {{{0}, {10}}}});
  std::vector<int> written(4);
  for (const auto& [name, tensor] : assign({all, all, all, all}))
    ++written[static_cast<std::size_t>(tensor.boxes.at(0).owner)];
  EXPECT_EQ(written, (std::vector<int>{2, 2, 2, 2}));
}

TEST(CheckpointAssign, DisagreementAndGapsAreRefused) {
  const Holding all{.name = "w", .dtype = "F32", .shape = {4}, .boxes = {{{0}, {4}}}};
  Holding other = all;
  other.dtype = "F64";
  EXPECT_EQ(error_of([&] { assign({{all}, {other}}); }),
            "meshtorch: the ranks disagree on tensor \"w\": F32 [0:4] before, F64 [0:4] on rank 1\n  in: "
            "saving it\n"
            "  do: give the same global tensor on every rank");
  Holding part = all;
  part.boxes = {{{0}, {3}}};
  EXPECT_EQ(error_of([&] { assign({{part}}); }),
            "meshtorch: the ranks hold 3 elements of tensor \"w\", which has 4\n  in: saving it\n"
            "  do: save with all ranks of its mesh, with one layout");
}

Index sample_index() {
  Index index;
  index.generation = 7;
  index.files["data.safetensors"] = {.name = "data.safetensors", .bytes = 40, .checksums = {0x1234, ~0ULL}};
  index.tensors["w"] = {
      .dtype = "F32",
      .shape = {4, 2},
      .chunks = {{"data.safetensors", {{0, 0}, {3, 2}}}, {"data.safetensors", {{3, 0}, {1, 2}}}}};
  index.tensors["scalar"] = {.dtype = "I64", .shape = {}, .chunks = {{"data.safetensors", {}}}};
  index.values = {{"step", 12}, {"lr", 0.1}, {"seed", 18446744073709551615ULL}};
  return index;
}

TEST(CheckpointIndex, WhatIsWrittenIsRead) {
  EXPECT_EQ(Index::from_text("x", sample_index().to_text()), sample_index());
}

TEST(CheckpointIndex, EveryChangeOfItsTextIsFound) {
  const std::string text = sample_index().to_text();
  const std::string meaningful = "abcdefghijklmnopqrstuvwxyz0123456789";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (meaningful.find(text[i]) == std::string::npos) continue;
    std::string changed = text;
    changed[i] = text[i] == '1' ? '2' : '1';
    EXPECT_TRUE(error_of([&] {
                  Index::from_text("x", changed);
                }).starts_with("meshtorch: the index of the checkpoint cannot be read: "))
        << i;
  }
}

TEST(CheckpointIndex, ChunksMustFillTheirTensor) {
  const auto error = [](const std::function<void(Index&)>& change) {
    Index index = sample_index();
    change(index);
    return error_of([&] { Index::from_text("dir/checkpoint.json", index.to_text()); });
  };
  const std::string rest =
      "\n  in: dir/checkpoint.json\n  do: load another checkpoint; this one is damaged, or is none";
  EXPECT_EQ(error([](Index& i) { i.tensors["w"].chunks.pop_back(); }),
            "meshtorch: tensor \"w\" has 8 elements, but its chunks have 6" + rest);
  EXPECT_EQ(error([](Index& i) { i.tensors["w"].chunks[0].file = "other"; }),
            "meshtorch: tensor \"w\" has a chunk in \"other\", which the index does not list" + rest);
  EXPECT_EQ(error([](Index& i) { i.tensors["w"].chunks[1].box.offsets[0] = 4; }),
            "meshtorch: tensor \"w\" has a chunk outside its shape: [4:5, 0:2]" + rest);
  EXPECT_EQ(error([](Index& i) { i.files["data.safetensors"].name = "../data"; }),
            "meshtorch: the index of the checkpoint cannot be read: \"../data\" is no file beside the index" +
                rest);
}

TEST(Checksums, AreThoseOfTheBlocksHoweverTheBytesCome) {
  std::string text(2 * safetensors::internal::kChecksumBlock + 5, 'x');
  for (std::size_t i = 0; i < text.size(); i += 1000) text[i] = static_cast<char>(i);
  const auto bytes = std::as_bytes(std::span(text));
  for (const std::size_t step :
       {std::size_t{999}, std::size_t{safetensors::internal::kChecksumBlock}, text.size()}) {
    safetensors::internal::BlockChecksums blocks;
    for (std::size_t i = 0; i < bytes.size(); i += step)
      blocks.update(bytes.subspan(i, std::min(step, bytes.size() - i)));
    const auto all = blocks.finish();
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[1], safetensors::internal::checksum(bytes.subspan(safetensors::internal::kChecksumBlock,
                                                                    safetensors::internal::kChecksumBlock)));
    EXPECT_EQ(all[2], safetensors::internal::checksum(bytes.last(5)));
  }
}

}  // namespace
}  // namespace meshtorch::checkpoint
