// An operator whose kernel reads memory raw, as many of LibTorch's do: the prover passes it the very tensors
// that the dispatcher would pass.
#include <torch/library.h>

#include <cstring>

#include "../dist/numbers.h"
#include "local/kernel_operand.h"
#include "prove/prove.h"

namespace {

// Right for contiguous memory only.
torch::Tensor read_raw(const torch::Tensor& x) {
  torch::Tensor y = torch::empty(x.sizes(), x.options());
  if (x.numel() > 0) std::memcpy(y.data_ptr(), x.data_ptr(), x.nbytes());
  return y;
}

}  // namespace

TORCH_LIBRARY(meshtorch_sim_tests, library) { library.def("read_raw(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(meshtorch_sim_tests, CPU, library) { library.impl("read_raw", read_raw); }

namespace meshtorch::testing {
using namespace internal;
namespace {

TEST(RawMemory, OfASliceIsThatOfAPlainRun) {
  const torch::Tensor whole = numbers({5, 4});
  const torch::Tensor slice = whole.narrow(1, 1, 2);
  EXPECT_FALSE(is_equal(read_raw(slice), slice));
  EXPECT_TRUE(is_equal(read_raw(as_kernel_operand(whole, slice)), slice));
  // What lies as the whole does stays where it is.
  const torch::Tensor rows = whole.narrow(0, 1, 2);
  EXPECT_TRUE(as_kernel_operand(whole, rows).is_same(rows));
  const torch::Tensor columns = numbers({4, 5}).t();
  const torch::Tensor columns_slice = columns.narrow(1, 1, 2);
  EXPECT_TRUE(as_kernel_operand(columns, columns_slice).is_same(columns_slice));
  const torch::Tensor torn = as_kernel_operand(columns, columns.narrow(0, 1, 2));
  EXPECT_EQ(torn.strides(), at::IntArrayRef({1, 2}));
  EXPECT_TRUE(is_equal(torn, columns.narrow(0, 1, 2)));
  EXPECT_EQ(as_kernel_operand(columns, columns.contiguous()).strides(), columns.strides());
}

TEST(RawMemory, IsReadRightlyByTheProver) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("meshtorch_sim_tests::read_raw", "");
  const Proof proof = prove(operator_info(op), RuleEntry("a b -> a b"), {numbers({5, 4})});
  EXPECT_TRUE(proof.is_bound);
  EXPECT_GT(proof.claims, 2);
  EXPECT_EQ(proof.mistakes.empty() ? "" : proof.mistakes.front(), "");
}

}  // namespace
}  // namespace meshtorch::testing
