// The two ways into a call: the boxed handler, and the unboxed kernels of the operators that are called most.
// Both look up the same decision.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include "dispatch/handler.h"
#include "operator/operator.h"
#include "rank_data.h"
#include "runtime/key.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// The operators that have a kernel of their own below autograd.
std::vector<c10::OperatorHandle> direct_operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && op->hasKernelForDispatchKey(kMeshKey)) found.push_back(*op);
  }
  return found;
}

// Arguments that every one of them takes: square matrices that are split in one way, small numbers, dims.
torch::jit::Stack arguments_for(const c10::OperatorHandle& op, const DeviceMesh& mesh, int dims) {
  const auto square = [&] {
    const torch::Tensor whole = torch::arange(1, 17, torch::kDouble).div(16).view({4, 4});
    return torch::Tensor(distribute_tensor(dims == 2 ? whole : torch::stack({whole, whole}), mesh,
                                           {Shard(dims == 2 ? 1 : 0)}));
  };
  torch::jit::Stack stack;
  std::int64_t dim = 0;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const std::string type = argument.type()->str();
    if (argument.default_value() && argument.name() != "dim") {
      stack.push_back(*argument.default_value());
    } else if (type == "Tensor" || type == "Tensor?") {
      stack.push_back(square());
    } else if (type == "int[]" || type == "int[1]?" || type == "int[]?" || type == "SymInt[]") {
      stack.push_back(argument.name() == "size" ? c10::IValue(std::vector<std::int64_t>{4, 4})
                                                : c10::IValue(std::vector<std::int64_t>{0}));
    } else if (type == "int") {
      stack.push_back(dim++);
    } else if (type == "number" || type == "Scalar") {
      stack.push_back(0.5);
    } else if (type == "bool") {
      stack.push_back(false);
    } else {
      ADD_FAILURE() << op.schema() << ": no argument for " << type;
    }
  }
  return stack;
}

TEST(FrontEnds, HaveOneKeyForEveryOperatorThatHasBoth) {
  spawn(2, [](int) {
    const DeviceMesh mesh = init_device_mesh(torch::kCPU, {2});
    const torch::NoGradGuard no_grad;
    const std::vector<c10::OperatorHandle> all = direct_operators();
    EXPECT_GE(all.size(), 35U);
    for (const c10::OperatorHandle& op : all) {
      const int dims = op.schema().name() == "aten::bmm" ? 3 : 2;
      torch::jit::Stack boxed = arguments_for(op, mesh, dims);
      Handler(operator_info(op), boxed).run();
      const CacheStatistics before = decision_cache_statistics(mesh);
      torch::jit::Stack direct = arguments_for(op, mesh, dims);
      op.callBoxed(&direct);
      const CacheStatistics after = decision_cache_statistics(mesh);
      EXPECT_EQ(after.misses, before.misses) << op.schema();
      EXPECT_EQ(after.size, before.size) << op.schema();
      EXPECT_GE(after.hits, before.hits + 1) << op.schema();
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
