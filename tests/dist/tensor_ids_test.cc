// Ranks compare of which tensor a collective moves data. They count the tensors that they make; errors that a
// program catches may leave them with different counts, which must not make right collectives fail.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;

// The error of a program that goes on; empty if there is none.
std::string caught_error(const std::function<void()>& program) {
  try {
    program();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Makes tensors on the mesh, moves them, and looks at what comes out.
void expect_right_program(const mt::DeviceMesh& mesh, int rank, const char* after) {
  const torch::Tensor whole = numbers({6, 5});
  const DTensor split =
      mt::distribute_tensor(whole, mesh, mt::Placements(static_cast<size_t>(mesh.ndim()), Shard(0)));
  EXPECT_TRUE(is_equal(split.full_tensor(), whole)) << after;
  const DTensor terms = DTensor::from_local(whole + rank, mesh,
                                            mt::Placements(static_cast<size_t>(mesh.ndim()), Partial("max")));
  const torch::Tensor largest = whole + static_cast<double>(mesh.size()) - 1;
  EXPECT_TRUE(is_close(DTensor(torch::exp(terms)).full_tensor(), torch::exp(largest), 1e-5)) << after;
  EXPECT_TRUE(is_close(DTensor(torch::mm(split, split.t())).full_tensor(), torch::mm(whole, whole.t()), 1e-5))
      << after;
}

TEST(TensorIds, AreRightAfterSomeRanksDisagreedAmongThemselves) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"rows", "columns"});
    const mt::DeviceMesh all = line(4);
    for (int round = 0; round < 2; ++round) {
      // The first row only: its ranks give different placements, and make different numbers of tensors.
      const std::string error = caught_error([&] {
        if (rank == 1) DTensor::from_local(numbers({2, 3}), mesh["columns"], {Replicate()});
        if (rank < 2)
          mt::distribute_tensor(numbers({4, 3}), mesh["columns"], {rank == 0 ? Shard(0) : Shard(1)});
      });
      EXPECT_EQ(error.find("disagree") != std::string::npos, rank < 2) << error;
      expect_right_program(all, rank, "on all ranks");
      expect_right_program(mesh["rows"], rank / 2, "on columns of ranks");
      expect_right_program(mesh["columns"], rank % 2, "on rows of ranks");
      const std::string of_all =
          error_of([&] { mt::wait_tensor(mt::all_reduce(torch::ones({rank == 3 ? 5 : 4}), "sum", {})); });
      EXPECT_NE(of_all.find("disagree"), std::string::npos) << of_all;
      expect_right_program(mesh["columns"], rank % 2, "on rows, after all disagreed");
      expect_right_program(all, rank, "after all disagreed");
    }
  });
}

// A program that leaves out a step whose data one rank cannot take.
TEST(TensorIds, AreRightAfterAStepThatRanksLeftInDifferentPlaces) {
  if (!ranks_share_memory()) GTEST_SKIP() << "gloo tells the ranks by a disagreement";
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = line(4);
    const mt::DeviceMesh pairs = mt::init_device_mesh(torch::kCPU, {2, 2}, {"a", "b"});
    for (int step = 0; step < 3; ++step) {
      const std::string error = caught_error([&] {
        const DTensor ids = DTensor::from_local(
            torch::full({2}, step == 1 && rank == 2 ? 99 : 1, torch::kLong), mesh, {Shard(0)});
        const DTensor table = mt::distribute_tensor(numbers({5, 3}), mesh, {Replicate()});
        const DTensor rows = torch::embedding(table, ids);
        const DTensor more = DTensor::from_local(rows.to_local(), mesh, {Shard(0)}, {.shape = {{8, 3}}});
        EXPECT_EQ(more.full_tensor().size(0), 8);
      });
      EXPECT_EQ(!error.empty(), step == 1) << error;
      expect_right_program(pairs["a"], rank / 2, "on some");
      expect_right_program(mesh, rank, "on all");
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
