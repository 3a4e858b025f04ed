// Large tensors in memory that ranks share: more than a stage holds, in runs of any length, of any type.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Replicate;
using mt::Shard;

struct Move {
  const char* name;
  std::vector<int64_t> shape;
  torch::ScalarType type;
  mt::Placements from, to;
};

// A process's stage has 512 KiB, a thread's 32: each of these is more than a share of it.
std::vector<Move> moves() {
  return {
      {"rows to columns", {1024, 1028}, torch::kFloat, {Shard(0)}, {Shard(1)}},
      {"columns to rows, uneven", {1022, 1027}, torch::kFloat, {Shard(1)}, {Shard(0)}},
      {"runs of one element", {1 << 18, 5}, torch::kFloat, {Shard(0)}, {Shard(1)}},
      {"runs of one byte", {1 << 18, 7}, torch::kByte, {Shard(1)}, {Shard(0)}},
      {"four dims", {6, 250, 33, 20}, torch::kDouble, {Shard(1)}, {Shard(2)}},
      {"inner dim gathered", {301, 5, 700}, torch::kBFloat16, {Shard(2)}, {Replicate()}},
      {"elements gathered", {300007, 3}, torch::kInt, {Shard(1)}, {Replicate()}},
      {"bools gathered", {1 << 20, 3}, torch::kBool, {Shard(1)}, {Replicate()}},
      {"complex numbers exchanged", {1 << 15, 9}, torch::kComplexFloat, {Shard(0)}, {Shard(1)}},
      {"reduced to rows", {1023, 1025}, torch::kFloat, {Partial()}, {Shard(0)}},
      {"reduced to columns", {1023, 1025}, torch::kDouble, {Partial()}, {Shard(1)}},
      {"reduced in runs of one element", {1 << 18, 5}, torch::kFloat, {Partial()}, {Shard(1)}},
      {"reduced in half precision", {1 << 17, 18}, torch::kBFloat16, {Partial()}, {Shard(1)}},
      {"complex numbers reduced", {1 << 15, 9}, torch::kComplexFloat, {Partial()}, {Shard(1)}},
      {"reduced everywhere", {1000003}, torch::kFloat, {Partial()}, {Replicate()}},
  };
}

// Small whole numbers: their sums are exact in every type.
torch::Tensor whole_numbers(const Move& move) {
  const int64_t count = c10::multiply_integers(move.shape);
  return torch::arange(count).remainder(move.type == torch::kBool ? 2 : 5).to(move.type).view(move.shape);
}

TEST(LargeMoves, AreThoseOfThePlainTensor) {
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](int rank) {
      const auto mesh = mt::init_device_mesh(torch::kCPU, {ranks});
      for (const Move& move : moves()) {
        const torch::Tensor whole = whole_numbers(move);
        const bool is_pending = move.from[0].is_partial();
        const torch::Tensor expected = is_pending ? whole * ranks : whole;
        const mt::DTensor from = is_pending ? mt::DTensor::from_local(whole, mesh, move.from)
                                            : mt::distribute_tensor(whole, mesh, move.from);
        const torch::Tensor local = from.redistribute(mesh, move.to).to_local();
        const mt::DTensor direct = mt::distribute_tensor(expected, mesh, move.to);
        EXPECT_TRUE(is_equal(local, direct.to_local())) << move.name << ", rank " << rank << " of " << ranks;
      }
    });
  }
}

TEST(LargeMoves, ReadTensorsOfAnyStrides) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {4});
    const torch::Tensor whole = torch::arange(1024 * 1024).view({1024, 1024});
    const torch::Tensor rows = whole.narrow(0, 256 * rank, 256);
    const torch::Tensor wide = torch::zeros({256, 1500}, torch::kLong);
    wide.narrow(1, 100, 1024).copy_(rows);
    for (const torch::Tensor& local : {wide.narrow(1, 100, 1024), rows.t().contiguous().t()}) {
      const auto from = mt::DTensor::from_local(local, mesh, {Shard(0)});
      EXPECT_TRUE(is_equal(from.redistribute(mesh, {Shard(1)}).to_local(), whole.narrow(1, 256 * rank, 256)));
      EXPECT_TRUE(is_equal(from.full_tensor(), whole));
    }
  });
}

TEST(LargeMoves, AreRightForStridedShardsAndTwoAxes) {
  on_ranks(4, [](int) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor whole = torch::arange(1026 * 515).view({1026, 515});
    const mt::Placements strided{mt::StridedShard(0, 2), Shard(0)};
    for (const mt::Placements& from :
         {strided, mt::Placements{Shard(0), Shard(0)}, {Shard(1), Shard(0)}, {Replicate(), Shard(1)}}) {
      for (const mt::Placements& to :
           {strided, mt::Placements{Replicate(), Replicate()}, {Shard(0), Shard(1)}, {Shard(1), Shard(1)}}) {
        const auto moved = mt::distribute_tensor(whole, mesh, from).redistribute(mesh, to);
        EXPECT_TRUE(is_equal(moved.to_local(), mt::distribute_tensor(whole, mesh, to).to_local()))
            << mt::to_string(from) << " to " << mt::to_string(to);
      }
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
