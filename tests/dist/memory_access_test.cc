// Where LibTorch looks for the memory of a distributed tensor, the error says that there is none, and what to
// do.
#include <filesystem>
#include <sstream>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

void expect_no_memory(const std::string& error) {
  EXPECT_NE(error.find("meshtorch: a distributed tensor has no memory of its own"), std::string::npos)
      << error;
  EXPECT_NE(error.find("\n  do: print DTensor(x)"), std::string::npos) << error;
}

TEST(MemoryOfADistributedTensor, IsNowhereToBeRead) {
  on_ranks(2, [](int) {
    for (const mt::Placement& lies : {mt::Placement(Shard(0)), mt::Placement(Replicate())}) {
      const torch::Tensor x = mt::distribute_tensor(numbers({4, 2}), line(2), {lies});
      for (const torch::Tensor& each : {x, x * 2, x.t(), x.detach(), x.sum(), x.to(torch::kDouble)}) {
        expect_no_memory(error_of([&] { each.data_ptr(); }));
        expect_no_memory(error_of([&] { each.storage(); }));
        expect_no_memory(error_of([&] { std::ostringstream() << each; }));
      }
      std::ostringstream printed;
      printed << DTensor(x);
      EXPECT_NE(printed.str().find("DTensor(Float[4, 2]"), std::string::npos) << printed.str();
    }
  });
}

TEST(MemoryOfADistributedTensor, IsNotWrittenByTorchSave) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("torch_save");
    const std::string file = directory / ("saved" + std::to_string(rank));
    mt::nn::Linear layer(4, 6);
    torch::save(layer, file);
    EXPECT_TRUE(std::filesystem::remove(file));
    mt::distribute_module(*layer, line(2));
    const std::string error = error_of([&] { torch::save(layer, file); });
    EXPECT_NE(error.find("torch::save cannot write a distributed tensor\n  in: weight of "),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("do: use meshtorch::checkpoint::save"), std::string::npos) << error;
    EXPECT_FALSE(std::filesystem::exists(file));
    expect_no_memory(error_of([&] { torch::save(layer->weight, file); }));
  });
}

// LibTorch opens the file before it asks for memory: what is left there is never taken for a saved module.
TEST(MemoryOfADistributedTensor, IsNotInAFileThatTorchSaveHasBegun) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("torch_save_begun");
    const std::string file = directory / ("saved" + std::to_string(rank));
    torch::nn::Sequential layers(torch::nn::Linear(4, 6), torch::nn::Linear(6, 4));
    mt::distribute_module(*layers, line(2));
    const std::string error = error_of([&] { torch::save(layers, file); });
    expect_no_memory(error);
    EXPECT_NE(error.find("remove the file that torch::save has begun"), std::string::npos) << error;
    torch::nn::Sequential fresh(torch::nn::Linear(4, 6), torch::nn::Linear(6, 4));
    EXPECT_THROW(torch::load(fresh, file), c10::Error);
  });
}

TEST(MemoryOfADistributedTensor, IsFilledByTorchLoad) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("torch_load");
    const std::string file = directory / ("saved" + std::to_string(rank));
    torch::nn::Linear whole(4, 5);
    {
      const torch::NoGradGuard no_grad;
      for (const torch::Tensor& p : whole->parameters()) p.copy_(numbers(p.sizes()));
    }
    torch::save(whole, file);
    torch::nn::Linear split(4, 5);
    for (const torch::Tensor& p : split->parameters())
      mt::replace_data(p, mt::distribute_tensor(p.detach(), line(2), {Shard(0)}));
    torch::load(split, file);
    for (const auto& p : split->named_parameters()) {
      const DTensor loaded(p.value().detach());
      EXPECT_EQ(loaded.placements(), mt::Placements{Shard(0)});
      EXPECT_TRUE(is_equal(loaded.full_tensor(), whole->named_parameters()[p.key()].detach())) << p.key();
    }
    const torch::Tensor other = mt::distribute_tensor(numbers({3, 4}), line(2), {Shard(0)});
    EXPECT_NE(error_of([&] { other.set_(numbers({4, 4})); }).find("has no memory of its global shape"),
              std::string::npos);
  });
}

TEST(MemoryOfADistributedTensor, IsSharedBySet) {
  on_ranks(2, [](int) {
    const torch::Tensor source = mt::distribute_tensor(numbers({5, 4}), line(2), {Shard(1)});
    const torch::Tensor tensor = mt::distribute_tensor(numbers({3}), line(2), {Shard(0)});
    tensor.set_(source);
    source.add_(1);
    EXPECT_EQ(DTensor(tensor).placements(), mt::Placements{Shard(1)});
    EXPECT_TRUE(is_equal(DTensor(tensor).full_tensor(), numbers({5, 4}) + 1));
    const torch::Tensor row = mt::distribute_tensor(numbers({3}), line(2), {Shard(0)});
    row.set_(source.select(1, 3));
    row.mul_(2);
    torch::Tensor expected = numbers({5, 4}) + 1;
    expected.select(1, 3).mul_(2);
    EXPECT_TRUE(is_equal(DTensor(source).full_tensor(), expected));
  });
}

template <class Holder>
void expect_clones(Holder layer) {
  for (const torch::Tensor& p : layer->parameters())
    mt::replace_data(p, mt::distribute_tensor(numbers(p.sizes()), line(2), {Shard(0)}));
  const auto copy = std::dynamic_pointer_cast<typename Holder::ContainedType>(layer->clone());
  ASSERT_NE(copy, nullptr);
  for (const auto& p : layer->named_parameters()) {
    const DTensor original(p.value().detach());
    const torch::Tensor cloned = copy->named_parameters()[p.key()];
    EXPECT_TRUE(cloned.requires_grad());
    ASSERT_TRUE(mt::is_dtensor(cloned)) << p.key();
    EXPECT_EQ(DTensor(cloned).placements(), original.placements());
    EXPECT_TRUE(is_equal(DTensor(cloned.detach()).full_tensor(), original.full_tensor()));
    const torch::NoGradGuard no_grad;
    cloned.zero_();
    EXPECT_TRUE(is_equal(original.full_tensor(), numbers(p.value().sizes()))) << "they share memory";
  }
  const torch::Tensor x = mt::distribute_tensor(numbers({3, 4}), line(2), {Replicate()});
  EXPECT_EQ(copy->forward(x).abs().sum().template item<float>(), 0);
}

TEST(MemoryOfADistributedTensor, IsClonedWithItsModule) {
  on_ranks(2, [](int) {
    expect_clones(torch::nn::Linear(4, 6));
    expect_clones(mt::nn::Linear(4, 6));
  });
}

}  // namespace
}  // namespace meshtorch::testing
