// Look-up tables that are split by rows: the gradient of a rank is made of its own rows only.
#include <meshtorch/memory.h>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

struct TableCase {
  const char* name;
  std::vector<int64_t> mesh;
  int64_t rows;
  mt::Placements table, ids, gradient;  // the gradient of what was looked up
  int64_t padding = -1;
};

std::vector<TableCase> table_cases() {
  const auto pending = mt::Partial();
  return {
      {"even rows", {4}, 64, {Shard(0)}, {Replicate()}, {Replicate()}},
      {"uneven rows and a rank without any", {4}, 9, {Shard(0)}, {Replicate()}, {Replicate()}},
      {"padding", {2}, 10, {Shard(0)}, {Replicate()}, {Replicate()}, 7},
      {"a sequence that is split", {4}, 10, {Shard(0)}, {Replicate()}, {Shard(1)}},
      {"a gradient that is pending", {2}, 10, {Shard(0)}, {Replicate()}, {pending}},
      {"a batch that is split over another axis",
       {2, 2},
       10,
       {Replicate(), Shard(0)},
       {Shard(0), Replicate()},
       {Shard(0), Replicate()}},
      {"rows over two axes", {2, 2}, 11, {Shard(0), Shard(0)}, {Shard(0), Replicate()}, {Shard(0), Shard(1)}},
      {"rows and columns",
       {2, 2},
       10,
       {Shard(0), Shard(1)},
       {Replicate(), Replicate()},
       {Shard(0), Shard(2)}},
  };
}

TEST(EmbeddingByRows, GradientsAreThoseOfOneDevice) {
  for (const TableCase& c : table_cases()) {
    on_ranks(static_cast<int>(c10::multiply_integers(c.mesh)), [&](int) {
      SCOPED_TRACE(c.name);
      const auto mesh = mt::init_device_mesh(torch::kCPU, c.mesh);
      const torch::Tensor table = numbers({c.rows, 6}, torch::kDouble);
      const torch::Tensor ids = (torch::arange(4 * 8) * 5 + 3).remainder(c.rows).view({4, 8});
      const torch::Tensor gradient = numbers({4, 8, 6}, torch::kDouble, 2);
      const torch::Tensor plain = table.clone().requires_grad_();
      torch::embedding(plain, ids, c.padding).backward(gradient);

      const DTensor split = mt::distribute_tensor(table, mesh, c.table);
      split.requires_grad_();
      const DTensor found(torch::embedding(split, mt::distribute_tensor(ids, mesh, c.ids), c.padding));
      // Equal shares of a pending gradient.
      const auto terms = static_cast<double>(c.gradient[0].is_partial() ? c.mesh[0] : 1);
      const DTensor incoming = c.gradient[0].is_partial()
                                   ? DTensor::from_local(gradient / terms, mesh, c.gradient)
                                   : mt::distribute_tensor(gradient, mesh, c.gradient);
      found.backward(incoming);
      const DTensor rows(split.grad());
      mt::Placements expected =
          c.table;  // a sum over a batch that is split stays pending, as of any parameter
      for (std::size_t axis = 0; axis < expected.size(); ++axis) {
        if (expected[axis].is_replicate() && c.ids[axis].is_shard()) expected[axis] = mt::Partial();
      }
      EXPECT_EQ(rows.placements(), expected);
      EXPECT_TRUE(is_close(rows.full_tensor(), plain.grad(), 1e-12));
    });
  }
}

TEST(EmbeddingByRows, NoRankMakesTheWholeTable) {
  on_ranks(4, [](int) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {4});
    constexpr int64_t kRows = 40000, kWidth = 16;
    constexpr int64_t kWholeBytes = kRows * kWidth * 4;
    const DTensor table = mt::zeros({kRows, kWidth}, mesh, {Shard(0)}, torch::requires_grad());
    const torch::Tensor ids =
        mt::distribute_tensor(torch::arange(8).view({2, 4}) * 5000, mesh, {Replicate()});
    const torch::Tensor loss = torch::embedding(table, ids).sum();
    mt::PeakMemory peak;
    const int64_t before = peak.bytes();
    loss.backward();
    EXPECT_LT(peak.bytes() - before, kWholeBytes / 2) << "its own rows take " << kWholeBytes / 4;
    EXPECT_EQ(DTensor(table.grad()).placements(), (mt::Placements{Shard(0)}));
  });
}

}  // namespace
}  // namespace meshtorch::testing
