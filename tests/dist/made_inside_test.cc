// What composite operators make inside and write lies as what is written does: gradients stay split.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Placements;
using mt::Replicate;
using mt::Shard;
using torch::Tensor;

struct Selection {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& places)> select;
};

const std::vector<Selection>& selections() {
  static const std::vector<Selection> all{
      {"max", [](const Tensor& x, const Tensor&) { return std::get<0>(x.max(1)); }},
      {"min, keepdim", [](const Tensor& x, const Tensor&) { return std::get<0>(x.min(1, true)); }},
      {"sort", [](const Tensor& x, const Tensor&) { return std::get<0>(x.sort(1)); }},
      {"topk", [](const Tensor& x, const Tensor&) { return std::get<0>(x.topk(2, 1)); }},
      {"kthvalue", [](const Tensor& x, const Tensor&) { return std::get<0>(x.kthvalue(2, 1)); }},
      {"median", [](const Tensor& x, const Tensor&) { return std::get<0>(x.median(1)); }},
      {"mode", [](const Tensor& x, const Tensor&) { return std::get<0>(x.mode(1)); }},
      {"cummax", [](const Tensor& x, const Tensor&) { return std::get<0>(x.cummax(1)); }},
      {"cummin", [](const Tensor& x, const Tensor&) { return std::get<0>(x.cummin(1)); }},
      {"gather", [](const Tensor& x, const Tensor& places) { return x.gather(1, places); }},
      {"take_along_dim", [](const Tensor& x, const Tensor& places) { return x.take_along_dim(places, 1); }},
  };
  return all;
}

// Rows that do not divide evenly, and numbers of which no two in a row are equal.
Tensor rows() { return torch::arange(30, torch::kDouble).mul(7).remainder(30).view({5, 6}); }
Tensor places() { return torch::arange(10).remainder(4).view({5, 2}); }

// The loss is a sum: the gradient that comes in is whole on every rank.
TEST(MadeInside, GradientsOfWhatIsSelectedInSplitRowsSendNothing) {
  on_ranks(2, [](int) {
    const Tensor where = split_in_two(places(), Shard(0));
    for (const Selection& one : selections()) {
      const Tensor plain = rows().requires_grad_();
      one.select(plain, places()).sum().backward();
      const Tensor x = split_in_two(rows(), Shard(0)).requires_grad_();
      const mt::CommDebugMode comm;
      one.select(x, where).sum().backward();
      EXPECT_EQ(comm.get_total_counts(), 0) << one.name << "\n" << comm.table();
      EXPECT_EQ(DTensor(x.grad()).placements(), Placements{Shard(0)}) << one.name;
      EXPECT_TRUE(is_equal(DTensor(x.grad()).full_tensor(), plain.grad())) << one.name;
    }
  });
}

// Ranks decide alike whoever else holds what operators make: here an observer that one rank has.
TEST(MadeInside, AnObserverOfOneRankChangesNothing) {
  on_ranks(2, [](int rank) {
    thread_local std::vector<c10::IValue> seen;
    at::CallbackHandle handle = 0;
    if (rank == 0) {
      handle = at::addThreadLocalCallback(
          at::RecordFunctionCallback(
              [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; },
              [](const at::RecordFunction& call, at::ObserverContext*) {
                for (const c10::IValue& output : call.outputs()) seen.push_back(output);
              })
              .needsOutputs(true));
    }
    const Tensor where = split_in_two(places(), Shard(0));
    for (const Selection& one : selections()) {
      const Tensor plain = rows().requires_grad_();
      one.select(plain, places()).sum().backward();
      const Tensor x = split_in_two(rows(), Shard(0)).requires_grad_();
      one.select(x, where).sum().backward();
      EXPECT_EQ(DTensor(x.grad()).placements(), Placements{Shard(0)}) << one.name;
      EXPECT_TRUE(is_equal(DTensor(x.grad()).full_tensor(), plain.grad())) << one.name;
    }
    if (rank == 0) at::removeCallback(handle);
    seen.clear();
  });
}

TEST(MadeInside, ASecondDerivativeGoesThroughIt) {
  on_ranks(2, [](int) {
    const auto twice = [](const Tensor& x, const Tensor& where, const Selection& one) {
      const Tensor y = one.select(x, where).pow(3).sum();
      const Tensor first = torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.square().sum()}, {x})[0];
    };
    const Tensor where = split_in_two(places(), Shard(0));
    for (const Selection& one : selections()) {
      const Tensor expected = twice(rows().requires_grad_(), places(), one);
      const Tensor got = twice(split_in_two(rows(), Shard(0)).requires_grad_(), where, one);
      EXPECT_TRUE(is_close(DTensor(got).full_tensor().detach(), expected, 1e-12)) << one.name;
    }
  });
}

// `multiply_` is composite: what it writes to is the user's, and lies where the user put it.
TEST(MadeInside, WhatAUserHandsInStaysWhereItIs) {
  on_ranks(2, [](int) {
    const Tensor whole = split_in_two(rows(), Replicate());
    const Tensor local = DTensor(whole).to_local();
    whole.multiply_(split_in_two(rows(), Shard(0)));
    EXPECT_EQ(DTensor(whole).placements(), Placements{Replicate()});
    EXPECT_TRUE(is_equal(DTensor(whole).to_local(), rows() * rows()));
    EXPECT_TRUE(is_equal(local, rows() * rows()));
  });
}

}  // namespace
}  // namespace meshtorch::testing
