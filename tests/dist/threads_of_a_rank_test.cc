// Several threads that work for one rank, and several worlds of threads in one process.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;
namespace fs = std::filesystem;

void on_two_threads(const std::function<void()>& body) {
  const at::ThreadLocalState state;
  std::thread other([&] {
    const at::ThreadLocalStateGuard same(state);
    body();
  });
  body();
  other.join();
}

TEST(ThreadsOfARank, MayReadOneTensor) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor whole = numbers({4, 6});
    const std::vector<torch::Tensor> tensors{
        mt::distribute_tensor(whole, mesh, {Replicate()}),
        mt::distribute_tensor(whole, mesh, {Shard(0)}),
        DTensor::from_local(whole + rank, mesh, {Partial()}) * 1,
        mt::distribute_tensor(whole, mesh, {Shard(0)})[1],
        mt::distribute_tensor(whole, mesh, {Shard(1)}).t(),
    };
    const torch::Tensor weight = mt::distribute_tensor(numbers({6, 4}), mesh, {Replicate()});
    for (const torch::Tensor& x : tensors) {
      const torch::Tensor expected = DTensor(torch::relu(x)).to_local().clone();  // reductions are kept now
      on_two_threads([&] {
        const c10::InferenceMode no_graph(false);
        const torch::NoGradGuard no_grad;
        for (int i = 0; i < 50; ++i) EXPECT_TRUE(is_equal(DTensor(torch::relu(x)).to_local(), expected));
      });
    }
    on_two_threads([&] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) torch::softmax(torch::mm(tensors[1], weight), 1);
    });
  });
}

// Whoever waits for one group does not keep other threads of the rank from using another.
TEST(ThreadsOfARank, MakeGroupsAtTheSameTime) {
  // Ranks that are processes tell each other by a file.
  const char* port = std::getenv("MASTER_PORT");
  const fs::path used =
      fs::temp_directory_path() /
      ("meshtorch_groups_" + std::string(port == nullptr ? std::to_string(getpid()) : port));
  on_ranks(4, [&](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"rows", "columns"});
    std::thread waits;
    if (rank == 0) {
      waits = std::thread([mesh] { mesh.get_group("rows"); });  // with rank 2, which comes later
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    for (int i = 0; rank == 2 && i < 2000 && !fs::exists(used); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const torch::Tensor sum = mt::all_reduce(torch::ones({1}), "sum", mesh.get_group("columns"));
    EXPECT_EQ(sum.item<float>(), 2);
    if (rank == 0) std::ofstream(used) << 1;
    if (rank != 0) mesh.get_group("rows");
    if (waits.joinable()) waits.join();
  });
  fs::remove(used);
}

// A world that compares in full is none of the business of another that is running.
TEST(SeveralWorlds, CompareWhatTheirOwnLevelSays) {
  if (ranks_are_processes()) GTEST_SKIP() << "a process is a rank of one world";
  std::latch second_is_there(2), first_is_over(1);
  std::thread second;
  mt::spawn(2, [&](int rank) {
    const auto reduce = [] { return mt::all_reduce(torch::ones({4}), "sum", mt::Group()); };
    reduce();
    if (rank == 1) {
      second = std::thread([&] {
        mt::spawn(2,
                  [&](int) {
                    second_is_there.count_down();
                    first_is_over.wait();
                    reduce();
                  },
                  {.agreement = mt::Agreement::full});
      });
      second_is_there.wait();
    }
    EXPECT_EQ(reduce()[0].item<float>(), 2);
  });
  first_is_over.count_down();
  second.join();
}

}  // namespace
}  // namespace meshtorch::testing
