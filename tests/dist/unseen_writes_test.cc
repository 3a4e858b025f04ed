// What is remembered of a tensor's values stays true to its memory: writes of one rank only, and writes that
// count no version.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;

// How a program reaches the memory of its shard.
struct UnseenWrite {
  const char* name;
  std::function<void(const DTensor& x, const torch::Tensor& given)> set_to_ten;
};

void fill_memory(const torch::Tensor& t) { std::fill_n(static_cast<float*>(t.data_ptr()), t.numel(), 10.0F); }

const std::vector<UnseenWrite>& unseen_writes() {
  static const std::vector<UnseenWrite> all{
      {"to_local().fill_", [](const DTensor& x, const torch::Tensor&) { x.to_local().fill_(10); }},
      {"memory of to_local()", [](const DTensor& x, const torch::Tensor&) { fill_memory(x.to_local()); }},
      {"to_local().data", [](const DTensor& x, const torch::Tensor&) { x.to_local().data().fill_(10); }},
      {"storage of to_local()",
       [](const DTensor& x, const torch::Tensor&) {
         const torch::Tensor tens = torch::full_like(x.to_local(), 10);
         std::memcpy(x.to_local().storage().mutable_data(), tens.data_ptr(), tens.nbytes());
       }},
      {"view, to_local() and memory",
       [](const DTensor& x, const torch::Tensor&) { fill_memory(DTensor(x.unsqueeze(-1)).to_local()); }},
      {"data of the tensor",
       [](const DTensor& x, const torch::Tensor&) { fill_memory(DTensor(x.variable_data()).to_local()); }},
      {"the tensor that from_local was given",
       [](const DTensor&, const torch::Tensor& given) { fill_memory(given); }},
  };
  return all;
}

void expect_relu(const torch::Tensor& x, const torch::Tensor& whole, const std::string& what) {
  EXPECT_TRUE(is_equal(DTensor(torch::relu(x)).full_tensor(), torch::relu(whole))) << what;
}

TEST(UnseenWrites, ToPendingTermsOnAnyRanks) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    for (const UnseenWrite& write : unseen_writes()) {
      for (const std::set<int>& writers : {std::set<int>{0}, {2}, {0, 1}, {0, 1, 2}}) {
        const torch::Tensor given = numbers({4, 3}) + rank;
        const DTensor x = DTensor::from_local(given, mesh, {Partial()});
        const torch::Tensor before = numbers({4, 3}) * 3 + 3;
        expect_relu(x, before, write.name);
        if (writers.contains(rank)) write.set_to_ten(x, given);
        torch::Tensor after = torch::zeros({4, 3});
        for (int r = 0; r < 3; ++r)
          after += writers.contains(r) ? torch::full({4, 3}, 10.0F) : numbers({4, 3}) + r;
        expect_relu(x, after, write.name);
        expect_relu(x, after, write.name);
      }
    }
  });
}

// The bias that one rank adds to its term.
TEST(UnseenWrites, OfOneRankDoNotMixUpTensorsOfOneShape) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor x = mt::distribute_tensor(numbers({4, 6}), mesh, {Shard(1)});
    const torch::Tensor w = mt::distribute_tensor(numbers({6, 5}), mesh, {Shard(0)});
    const DTensor first = torch::mm(x, w);
    const DTensor second = torch::mm(x, w * 2);
    ASSERT_EQ(first.placements(), mt::Placements{Partial()});
    const torch::Tensor product = torch::mm(numbers({4, 6}), numbers({6, 5}));
    expect_relu(first, product, "before");
    if (rank == 0) first.to_local().add_(1.0);
    expect_relu(first, product + 1, "after the write");
    expect_relu(second, product * 2, "the next tensor of this shape");
    if (rank == 1) first.to_local().mul_(1);
    expect_relu(second, product * 2, "again");
    expect_relu(first, product + 1, "after a write of the same value");
  });
}

TEST(UnseenWrites, OnAMeshOfTwoAxes) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const DTensor x = DTensor::from_local(numbers({2, 3}) + rank % 2, mesh, {Shard(0), Partial()});
    const torch::Tensor half = numbers({2, 3}) * 2 + 1;
    expect_relu(x, torch::cat({half, half}), "before");
    if (rank == 3) x.to_local().add_(5);
    expect_relu(x, torch::cat({half, half + 5}), "after");
    const DTensor y = DTensor::from_local(numbers({2, 3}) + rank, mesh, {Partial(), Partial("max")});
    const torch::Tensor sum = numbers({2, 3}) * 2 + 4;
    expect_relu(y, sum, "sum of maxima");
    if (rank == 0) y.to_local().add_(5);
    expect_relu(y, sum + 4, "sum of maxima, after");
  });
}

// A kept value is one that nobody can write to.
TEST(UnseenWrites, ToAViewOfTheReducedValueLeaveItAlone) {
  on_ranks(2, [](int rank) {
    const DTensor x = DTensor::from_local(numbers({4, 3}) + rank, line(2), {Partial("max")});
    const torch::Tensor whole = numbers({4, 3}) + 1;
    expect_relu(x, whole, "before");
    const DTensor flipped = torch::as_strided(x, {3}, {3}, 1);
    fill_memory(flipped.to_local().contiguous());
    expect_relu(x, whole, "after");
  });
}

// ---- views that are copies, since their base is split along what they select ----

struct SplitDimView {
  const char* name;
  std::function<torch::Tensor(const torch::Tensor&)> of;
};

const std::vector<SplitDimView>& views_along_the_split_dim() {
  static const std::vector<SplitDimView> all{
      {"x[1]", [](const torch::Tensor& x) { return x[1]; }},
      {"x[:5]", [](const torch::Tensor& x) { return x.slice(0, 0, 5); }},
      {"x.unbind(0)[2]", [](const torch::Tensor& x) { return x.unbind(0)[2]; }},
      {"x[1].view", [](const torch::Tensor& x) { return x[1].view({1, -1}); }},
      {"x[1][:2]", [](const torch::Tensor& x) { return x[1].slice(0, 0, 2); }},
  };
  return all;
}

TEST(UnseenWrites, OfTheOwnerOfARowReachCopiedViews) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    for (const SplitDimView& view : views_along_the_split_dim()) {
      for (const UnseenWrite& write : unseen_writes()) {
        for (int writer = 0; writer < 3; ++writer) {
          const torch::Tensor whole = numbers({7, 3});
          torch::Tensor given = whole.tensor_split(torch::IntArrayRef{3, 6})[rank].clone();
          const DTensor x = DTensor::from_local(given, mesh, {Shard(0)}, {.shape = {{7, 3}}});
          const torch::Tensor y = view.of(x);
          const std::string what = std::string(view.name) + " after " + write.name;
          expect_relu(y, view.of(whole), what);
          if (rank == writer) write.set_to_ten(x, given);
          whole.tensor_split(torch::IntArrayRef{3, 6})[writer].fill_(10);
          expect_relu(y, view.of(whole), what);
          expect_relu(y, view.of(whole), what + ", again");
          EXPECT_TRUE(is_equal(DTensor(y).full_tensor(), view.of(whole))) << what;
        }
      }
    }
  });
}

// A cache that is split by its heads, as programs that generate text write and read it.
TEST(UnseenWrites, InInferenceModeReachCopiedViews) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const c10::InferenceMode mode;
    torch::Tensor cache = mt::distribute_tensor(numbers({2, 4, 6}), mesh, {Shard(1)});
    torch::Tensor whole = numbers({2, 4, 6});
    const torch::Tensor head = cache.select(1, 2), first = cache.slice(1, 0, 3);
    const std::vector<torch::Tensor> heads = cache.unbind(1);
    expect_relu(head, whole.select(1, 2), "select");
    for (int step = 0; step < 3; ++step) {
      cache.slice(2, step, step + 1).fill_(10 + step);
      whole.slice(2, step, step + 1).fill_(10 + step);
      expect_relu(head, whole.select(1, 2), "select");
      expect_relu(first, whole.slice(1, 0, 3), "slice");
      expect_relu(heads[3], whole.select(1, 3), "unbind");
      EXPECT_TRUE(is_equal(DTensor(first).full_tensor(), whole.slice(1, 0, 3)));
      EXPECT_TRUE(is_equal(DTensor(heads[1]).to_local(), whole.select(1, 1)));
    }
    cache.mul_(2);
    whole.mul_(2);
    EXPECT_TRUE(is_equal(DTensor(head).to_local(), whole.select(1, 2)));
  });
}

// One rank may look at its shard by itself.
TEST(UnseenWrites, NobodyIsAskedWhereOneRankReadsItsShard) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = mt::distribute_tensor(numbers({4, 3}), line(2), {Shard(0)});
    const torch::Tensor row = x[1];
    if (rank == 0) {
      EXPECT_TRUE(is_equal(DTensor(row).to_local(), numbers({4, 3})[1]));
    }
    expect_relu(row, numbers({4, 3})[1], "afterwards");
  });
}

// Whoever writes to its shard does so alone, and so does whoever looks at its part of a copy: nothing is
// sent.
TEST(UnseenWrites, OfOneRankLeaveLocalTensorsOfCopiedViewsToEachRank) {
  on_ranks(3, [](int rank) {
    for (const bool is_inference : {false, true}) {
      const c10::InferenceMode mode(is_inference);
      for (const SplitDimView& view : views_along_the_split_dim()) {
        for (int writer = 0; writer < 3; ++writer) {
          torch::Tensor whole = numbers({7, 3});
          const DTensor x = mt::distribute_tensor(whole, line(3), {Shard(0)});
          const torch::Tensor y = view.of(x);
          const torch::Tensor before = view.of(whole).clone();
          if (rank == writer) x.to_local().fill_(10);
          const mt::CommDebugMode comm;
          EXPECT_TRUE(is_equal(DTensor(y).to_local(), before)) << view.name;
          EXPECT_EQ(comm.get_total_counts(), 0);
          whole.tensor_split(torch::IntArrayRef{3, 6})[writer].fill_(10);
          expect_relu(y, view.of(whole), view.name);
          EXPECT_TRUE(is_equal(DTensor(y).to_local(), view.of(whole))) << view.name;
          x.mul_(2);
          EXPECT_TRUE(is_equal(DTensor(y).to_local(), view.of(whole * 2))) << view.name << ", by an operator";
        }
      }
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
