// Calls of operators that look up, or write to, the places that an index tensor names.
#include "call_table.h"

namespace meshtorch::testing {

using namespace inputs;

namespace {

void add_along_dim(CallTable& t) {
  const torch::Tensor once = torch::tensor({1, 3, 0}, torch::kLong);
  t.add("embedding", {x({7, 4}), index({2, 5}, 7)});
  t.add("embedding", {x({7, 4}), index({}, 7)});
  for (const bool by_frequency : {false, true})
    t.add("embedding_dense_backward", {x({2, 5, 4}), index({2, 5}, 7)},
          {{"num_weights", 7}, {"padding_idx", 3}, {"scale_grad_by_freq", by_frequency}});
  for (const int64_t dim : {0, 1, -1}) {
    t.add("index_select", {x({5, 6, 4}), index({5}, 4)}, {{"dim", dim}});
    t.add("index_fill.int_Scalar", {x({5, 6, 4}), once}, {{"dim", dim}, {"value", 2}});
    t.add("index_fill.int_Tensor", {x({5, 6, 4}), once, x({}, 3)}, {{"dim", dim}});
    Ints source{5, 6, 4};
    source[static_cast<std::size_t>(dim < 0 ? dim + 3 : dim)] = 3;
    t.add({"index_add", "index_copy"}, {x({5, 6, 4}), once, x(source, 2)}, {{"dim", dim}});
    t.add("index_reduce", {x({5, 6, 4}), once, x(source, 2)}, {{"dim", dim}, {"reduce", "prod"}});
  }
  t.add("index_select", {x({5, 4}), index({}, 4)}, {{"dim", 1}});
}

void add_by_element(CallTable& t) {
  for (const int64_t dim : {0, 1}) {
    for (const Ints& shape : {Ints{5, 4}, Ints{3, 4}, Ints{5, 2}, Ints{2, 3}}) {
      const torch::Tensor at = index(shape, 4);
      t.add("gather", {x({5, 4}), at}, {{"dim", dim}});
      t.add("scatter.value", {x({5, 4}), at}, {{"dim", dim}, {"value", 2}});
      t.add("scatter.value_reduce", {x({5, 4}), at}, {{"dim", dim}, {"value", 2}, {"reduce", "multiply"}});
      t.add("scatter_add", {x({5, 4}), at, x({5, 4}, 2)}, {{"dim", dim}});
      t.add("scatter_add", {x({5, 4}), at, x(shape, 2)}, {{"dim", dim}});
      t.add("scatter.reduce", {x({5, 4}), at, x(shape, 2)}, {{"dim", dim}, {"reduce", "add"}});
      t.add("scatter_reduce.two", {x({5, 4}), at, x(shape, 2)}, {{"dim", dim}, {"reduce", "amax"}});
    }
    // Each place is written once, so that the order of writing does not matter.
    const torch::Tensor once = torch::arange(4).expand({5, 4}).contiguous();
    t.add("scatter.src",
          {x({5, 4}), dim == 1 ? once : torch::arange(5).unsqueeze(1).expand({5, 4}).contiguous(),
           x({5, 4}, 2)},
          {{"dim", dim}});
  }
  t.add("gather", {x({}), index({}, 1)}, {{"dim", 0}});
}

void add_look_ups(CallTable& t) {
  const torch::Tensor sorted = torch::arange(-3, 4).to(torch::kDouble) / 2;
  t.add("take", {x({5, 4}), index({2, 3}, 20)});
  t.add("bucketize.Tensor", {x({5, 4}), sorted});
  t.add("isin.Tensor_Tensor", {x({5, 4}), x({3, 2}, 2)});
  t.add("searchsorted.Tensor", {sorted, x({5, 4})});
  t.add("searchsorted.Tensor", {sorted.expand({5, 7}).contiguous(), x({5, 3})});
}

}  // namespace

std::vector<Call> index_calls() {
  CallTable t;
  add_along_dim(t);
  add_by_element(t);
  add_look_ups(t);
  return std::move(t).calls();
}

}  // namespace meshtorch::testing
