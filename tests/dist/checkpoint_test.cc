// Checkpoints: saved on one mesh, loaded on another, with optimizers, values and random numbers.
#include <meshtorch/checkpoint.h>

#include <fstream>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

namespace cp = mt::checkpoint;
using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;
using mt::StridedShard;

// A mesh, and ways in which tensors may lie on it.
struct Arrangement {
  std::vector<int64_t> mesh;
  std::vector<mt::Placements> layouts;

  int ranks() const { return static_cast<int>(c10::multiply_integers(mesh)); }
};

const std::vector<Arrangement> kArrangements{
    {{2}, {{Shard(0)}, {Shard(1)}, {Replicate()}, {StridedShard(1, 2)}}},
    {{3}, {{Replicate()}, {Shard(0)}, {Shard(1)}, {Shard(0)}}},
    {{2, 2},
     {{Shard(0), Shard(0)}, {StridedShard(0, 2), Shard(0)}, {Shard(1), Shard(0)}, {Replicate(), Shard(1)}}},
    {{1}, {{Shard(0)}, {Replicate()}, {Shard(1)}, {Shard(0)}}},
    {{4}, {{Shard(1)}, {Shard(0)}, {Shard(0)}, {Replicate()}}},
};

struct Sample {
  std::vector<int64_t> shape;
  at::ScalarType type;
};

// Even, uneven, smaller than the number of ranks, and without elements.
const std::vector<Sample> kSamples{{{8, 4}, at::kFloat},   {{5, 7}, at::kDouble}, {{1, 3}, at::kBFloat16},
                                   {{3, 2, 5}, at::kLong}, {{0, 4}, at::kFloat},  {{9, 9}, at::kBool}};

torch::Tensor whole_sample(std::size_t i) {
  return numbers(kSamples[i].shape, kSamples[i].type, static_cast<int64_t>(i));
}

mt::Placements layout_of(const Arrangement& arrangement, std::size_t i) {
  return arrangement.layouts[i % arrangement.layouts.size()];
}

TEST(Checkpoint, IsLoadedOnAnyMeshWhateverWroteIt) {
  const std::string directory = kept_directory("reshard");
  for (std::size_t step = 0; step < kArrangements.size(); ++step) {
    const Arrangement& arrangement = kArrangements[step];
    on_ranks(arrangement.ranks(), [&](int) {
      const auto mesh = mt::init_device_mesh(torch::kCPU, arrangement.mesh);
      // What the arrangement before this one saved.
      cp::State state;
      std::vector<DTensor> tensors;
      for (std::size_t i = 0; i < kSamples.size(); ++i) {
        tensors.push_back(mt::zeros(kSamples[i].shape, mesh, layout_of(arrangement, i), kSamples[i].type));
        state.add("t" + std::to_string(i), tensors.back());
      }
      const DTensor plain_scalar = mt::zeros({}, mesh, mt::Placements(arrangement.mesh.size()));
      const torch::Tensor plain = torch::zeros({3});
      state.add("scalar", plain_scalar).add("plain", plain);
      if (step == 0) {
        for (std::size_t i = 0; i < kSamples.size(); ++i)
          tensors[i].copy_(mt::distribute_tensor(whole_sample(i), mesh, layout_of(arrangement, i)));
        plain_scalar.fill_(2.5);
        plain.copy_(numbers({3}));
      } else {
        cp::load(directory, state);
      }
      for (std::size_t i = 0; i < kSamples.size(); ++i)
        EXPECT_TRUE(is_equal(tensors[i].full_tensor(), whole_sample(i)))
            << "tensor " << i << " at step " << step;
      EXPECT_EQ(plain_scalar.full_tensor().item<double>(), 2.5);
      EXPECT_TRUE(is_equal(plain, numbers({3})));
      cp::save(directory, state);
    });
  }
  remove_kept_directory("reshard");
}

TEST(Checkpoint, ReplicasAreWrittenOnceAndSharedOut) {
  on_ranks(4, [](int) {
    const ScratchDirectory directory("replicas");
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2});
    cp::State state;
    std::vector<DTensor> tensors;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(mt::ones({64, 64}, mesh, {Replicate(), i % 2 == 0 ? Replicate() : Shard(0)}));
      state.add("t" + std::to_string(i), tensors.back());
    }
    cp::save(directory.path(), state);
    constexpr uint64_t kAll = 8 * 64 * 64 * 4;
    constexpr uint64_t kHeader = 1024;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
      if (entry.path().filename() == "checkpoint.json") continue;
      ++files;
      EXPECT_GE(entry.file_size(), kAll / 4);
      EXPECT_LE(entry.file_size(), kAll / 4 + kHeader);
    }
    EXPECT_EQ(files, 4);
  });
}

TEST(Checkpoint, ANewOneReplacesTheOldAndLeavesNoFiles) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("replace");
    const DTensor tensor = mt::zeros({4, 4}, line(2), {Shard(0)});
    int64_t step = 0;
    const cp::State state = cp::State().add("tensor", tensor).add("step", step);
    EXPECT_FALSE(cp::exists(directory.path()));
    mt::barrier();
    for (step = 1; step <= 3; ++step) {
      tensor.fill_(static_cast<double>(step));
      cp::save(directory.path(), state);
    }
    EXPECT_TRUE(cp::exists(directory.path()));
    tensor.zero_();
    cp::load(directory.path(), state);
    EXPECT_EQ(step, 3);
    EXPECT_TRUE(is_equal(tensor.full_tensor(), torch::full({4, 4}, 3.0F)));
    mt::barrier();
    const auto entries = std::filesystem::directory_iterator(directory.path());
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 3);  // two ranks' files and the index
  });
}

TEST(Checkpoint, KeepsValuesAndRandomNumbers) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("values");
    int64_t step = 1234567890123;
    double loss = 0.1;
    double best = std::numeric_limits<double>::infinity();
    bool is_warm = true;
    std::string note = "{\"json\": [1]} \xc3\xa9\n";
    mt::manual_seed(18446744073709551615ULL);
    mt::rand({3}, line(2), {Shard(0)});
    cp::State state;
    state.add("step", step)
        .add("loss", loss)
        .add("best", best)
        .add("is_warm", is_warm)
        .add("note", note)
        .add_random();
    cp::save(directory.path(), state);
    const torch::Tensor next = mt::rand({3}, line(2), {Shard(0)}).full_tensor();
    mt::manual_seed(1);
    step = 0, loss = 0, best = 0, is_warm = false, note.clear();
    cp::load(directory.path(), state);
    EXPECT_EQ(step, 1234567890123);
    EXPECT_EQ(loss, 0.1);
    EXPECT_EQ(best, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(is_warm);
    EXPECT_EQ(note, "{\"json\": [1]} \xc3\xa9\n");
    EXPECT_TRUE(is_equal(mt::rand({3}, line(2), {Shard(0)}).full_tensor(), next));
  });
}

TEST(Checkpoint, APartOfTheStateCanBeLoaded) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("part");
    torch::nn::Linear layer(3, 2);
    int64_t step = 5;
    cp::save(directory.path(), cp::State().add("model", *layer).add("step", step));
    step = 0;
    cp::load(directory.path(), cp::State().add("step", step));
    EXPECT_EQ(step, 5);
  });
}

TEST(Checkpoint, APendingReductionIsSavedReduced) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("pending");
    const DTensor pending = DTensor::from_local(torch::full({2, 2}, rank + 1.0), line(2), {Partial()});
    cp::save(directory.path(), cp::State().add("x", pending));
    const DTensor loaded = mt::zeros({2, 2}, line(2), {Shard(1)}, at::kDouble);
    cp::load(directory.path(), cp::State().add("x", loaded));
    EXPECT_TRUE(is_equal(loaded.full_tensor(), torch::full({2, 2}, 3.0, at::kDouble)));
  });
}

TEST(Checkpoint, WorksInOneProcessWithoutAnyRanks) {
  const auto directory =
      std::filesystem::temp_directory_path() / ("meshtorch_alone_" + std::to_string(::getpid()));
  torch::nn::Linear layer(3, 2);
  const torch::Tensor before = layer->weight.detach().clone();
  const cp::State state = cp::State().add("model", *layer);
  cp::save(directory.string(), state);
  torch::nn::init::zeros_(layer->weight);
  cp::load(directory.string(), state);
  EXPECT_TRUE(is_equal(layer->weight.detach(), before));
  torch::nn::init::zeros_(layer->weight);
  cp::save_async(directory.string(), state).wait();
  cp::load(directory.string(), state);
  EXPECT_TRUE(is_equal(layer->weight.detach(), torch::zeros({2, 3})));
  std::filesystem::remove_all(directory);
}

TEST(Checkpoint, AModuleOnTheMetaDeviceIsGivenMemory) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("meta");
    torch::nn::Linear layer(4, 6);
    layer->weight.set_data(numbers({6, 4}));
    layer->bias.set_data(numbers({6}));
    const cp::State state = cp::State().add("model", *layer);
    cp::save(directory.path(), state);
    for (const torch::Tensor& p : layer->parameters())
      mt::replace_data(p, torch::empty_like(p, p.options().device(torch::kMeta)));
    mt::replace_data(layer->weight, mt::distribute_tensor(layer->weight.detach(), line(2), {Shard(0)}));
    cp::load(directory.path(), state);
    EXPECT_TRUE(is_equal(DTensor(layer->weight).to_local().detach(), numbers({6, 4}).chunk(2)[rank]));
    EXPECT_TRUE(is_equal(layer->bias.detach(), numbers({6})));
  });
}

TEST(Checkpoint, InTheBackgroundKeepsTheStateAsItWas) {
  on_ranks(3, [](int) {
    const ScratchDirectory directory("async");
    const DTensor tensor = mt::distribute_tensor(numbers({7, 3}), line(3), {Shard(0)});
    const DTensor copy = mt::distribute_tensor(numbers({7, 3}), line(3), {Replicate()});
    const cp::State state = cp::State().add("tensor", tensor).add("copy", copy);
    cp::AsyncSave save = cp::save_async(directory.path(), state);
    tensor.zero_();
    copy.zero_();
    // The ranks go on communicating meanwhile.
    for (int i = 0; i < 5; ++i) EXPECT_EQ(tensor.sum().item<double>(), 0);
    save.wait();
    EXPECT_TRUE(save.is_done());
    cp::load(directory.path(), state);
    EXPECT_TRUE(is_equal(tensor.full_tensor(), numbers({7, 3})));
    EXPECT_TRUE(is_equal(copy.full_tensor(), numbers({7, 3})));
    // A second one waits for the first.
    tensor.fill_(1);
    cp::save_async(directory.path(), state);
    tensor.fill_(2);
    cp::save_async(directory.path(), state);
    tensor.fill_(3);
    cp::load(directory.path(), state);
    EXPECT_EQ(tensor.sum().item<double>(), 42);
  });
}

TEST(Checkpoint, InTheBackgroundIsCompleteWhenTheRanksHaveEnded) {
  if (ranks_are_processes()) GTEST_SKIP() << "the kill test ends processes";
  const std::string directory = kept_directory("ended");
  mt::spawn(3, [&](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {3});
    const DTensor tensor = mt::distribute_tensor(numbers({5}), mesh, {Shard(0)});
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    cp::save_async(directory, cp::State().add("tensor", tensor));
  });
  const torch::Tensor loaded = torch::zeros({5});
  cp::load(directory, cp::State().add("tensor", loaded));
  EXPECT_TRUE(is_equal(loaded, numbers({5})));
  remove_kept_directory("ended");
}

TEST(Checkpoint, AViewThatIsACopyIsSavedAsItIsAndSeesWhatIsLoaded) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("copied_view");
    const torch::Tensor x = split_in_two(numbers({4, 3}), Shard(0));
    const torch::Tensor row = x.select(0, 1);
    cp::State state;
    state.add("row", row);
    x.add_(1);
    cp::save(directory.path(), state);
    x.zero_();
    cp::load(directory.path(), state);
    EXPECT_TRUE(is_equal(mt::full_tensor(row), numbers({4, 3})[1] + 1));
    EXPECT_TRUE(is_equal(mt::full_tensor(x)[1], numbers({4, 3})[1] + 1));
    const ScratchDirectory of_base("copied_view_of");
    cp::State base;
    base.add("x", x);
    cp::save(of_base.path(), base);
    x.zero_();
    EXPECT_TRUE(is_equal(mt::full_tensor(row), torch::zeros({3})));
    cp::load(of_base.path(), base);
    EXPECT_TRUE(is_equal(mt::full_tensor(row), numbers({4, 3})[1] + 1));
  });
}

}  // namespace
}  // namespace meshtorch::testing
