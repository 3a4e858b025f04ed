// Calls that the test of the whole namespace found wrong, each under the name of what must hold.
#include "../dist/numbers.h"
#include "../dist/placed_call.h"

namespace meshtorch::testing {
namespace {

void expect_right(const std::string& text) {
  const PlacedCall placed = PlacedCall::parse(text);
  const auto expected = plain_run(placed.call);
  ASSERT_TRUE(expected) << "plain LibTorch refuses " << text;
  const Verdict verdict = judge(placed, *expected);
  EXPECT_EQ(verdict.kind, Verdict::Kind::right) << text << "\n" << verdict.what;
}

std::string refusal_of(const std::string& text) {
  const PlacedCall placed = PlacedCall::parse(text);
  const auto expected = plain_run(placed.call);
  if (!expected) return "plain LibTorch refuses it";
  const Verdict verdict = judge(placed, *expected);
  EXPECT_EQ(verdict.kind, Verdict::Kind::refused) << text;
  return verdict.what;
}

TEST(Found, ZeroGradientsOfComparisonsInPlaceAreDistributed) {
  expect_right("eq_.Scalar: p[5,4], 3 | 2 | S(0)");
  expect_right("gt_.Tensor: f[5,4], f[5,4] | 3 | S(1), R");
  expect_right("greater_equal_.Scalar: f[5,4], 3 | 2 | S(0)");
}

TEST(Found, ZeroGradientsOfSignsAreDistributed) {
  expect_right("sgn_: f[5,4] | 2 | S(0)");
  expect_right("copysign_.Tensor: f[5,4], f[5,4] | 2 | S(0), R");
  expect_right("nextafter: f[5,4], f[5,4] | 2 | R, S(1)");
}

TEST(Found, ZeroGradientsOfBackwardOperatorsAreDistributed) {
  expect_right("reflection_pad1d_backward: f[3,4,8], f[3,4,5], [2, 1] | 2 | S(0), R");
  expect_right(
      "avg_pool2d_backward: f[3,4,3,3], f[3,4,6,6], [2, 2], [2, 2], [0, 0], false, true, none | 2 | S(1), R");
  expect_right("linalg_matrix_exp: m[3,4,4] | 2 | S(0)");
}

TEST(Found, TensorsThatCompositesMakeThemselvesAreDistributed) {
  expect_right("vander: n[5] | 2 | S(0)");
  expect_right("pad_sequence: [n[5,4], n[3,4]] | 2 | S(0), R");
  expect_right("_shape_as_tensor: f[5,4] | 2 | S(0)");
}

// Terms divided by zero are infinite, and opposite infinities do not add up to the quotient of the sum.
TEST(Found, PendingSumsAreReducedBeforeADivisionThatMayBeByZero) {
  expect_right("div.Tensor: f[5,4], n[5,4] | 3 | P, R");
  expect_right("div.Tensor: f[5,4], t{0} | 2 | P, R");
  expect_right("div.Tensor: f[5,4], 0 | 2 | P");
  expect_right("div.Scalar: f[5,4], 0 | 3 | P");
  expect_right("addcdiv: f[5,4], f[5,4], n[5,4] | 2 | P, P, R");
  expect_right("_foreach_div.ScalarList: [f[5,4], f[3]], [2, 0] | 2 | P, P");
  expect_right("_foreach_div.List: [f[5,4], f[3]], [n[5,4], n[3]] | 2 | P, P, R, R");
}

TEST(Found, CompositesThatLookIntoMemoryRunOnWholeTensors) {
  expect_right("pad_sequence: [f[5,4], f[3,4]] | 2 | S(0), R");
  expect_right("_pack_padded_sequence: f[5,3,4], t{5,3,2}, false | 2 | S(0), R");
  expect_right("_pad_packed_sequence: f[10,4], t{3,3,2,1,1}, false, 0.5, 5 | 3 | S(0), S(0)");
  expect_right("tensor_split.tensor_indices_or_sections: f[5,4], t{2} | 2 | S(0), R");
  expect_right("stft: f[3,32], 8, return_complex=true | 2 | S(0)");
}

TEST(Found, OutTensorsOfCompositesTakeTheShapeOfTheResultOnEveryRank) {
  expect_right("linalg_pinv.out: f[5,4], 0.5, out=f[5,4] | 2x2 | R R, S(0) S(1)");
  expect_right("linalg_matmul.out: f[5,4], f[4,6], out=f[5,4] | 2 | S(0), R, S(1)");
}

TEST(Found, ConjugateViewsTravel) {
  expect_right("conj: z[5,4] | 2 | S(0)");
  expect_right("fft_ihfft: f[5,4] | 3 | S(0)");
}

TEST(Found, FourierTransformsLeaveNoRankWithoutElements) {
  expect_right("fft_fft2: f[1,3,4] | 2 | S(0)");
  expect_right("_fft_c2c: z[1,5], [1], 0, true | 4 | S(0)");
}

TEST(Found, RunningStatisticsAreWrittenThoughTheSchemaDoesNotSaySo) {
  expect_right("batch_norm_update_stats: f[5,4,3], f[4], p[4], 0.1 | 2 | R, P, S(0)");
  expect_right(
      "native_batch_norm.out: f[5,4,3], f[4], f[4], f[4], p[4], true, 0.1, 1e-05, f[5,4,3], f[4], f[4] | 2 | "
      "R, R, R, R, S(0), R, R, R");
}

TEST(Found, WritesThroughAnUnsafeViewReachItsBase) {
  expect_right("kron.out: f[2,3], f[3,2], f[6,6] | 3 | R, R, S(0)");
}

TEST(Found, WrittenListsTakeTheShapesOfTheResults) {
  expect_right("_foreach_sign.out: [f[4], f[4]], [f[], f[4]] | 2 | S(0), S(0), R, R");
  expect_right("unbind_copy.int_out: f[2,3], out=[f[2,1,1,1], f[2]] | 2 | S(1), R, R");
  expect_right("unsafe_split.Tensor_out: f[4,4], 3, out=[f[4,4], f[4,4]] | 2 | S(0), R, S(0)");
}

TEST(Found, OutVariantsOfOperatorsByHandAreRight) {
  expect_right("mean.out: f[5,4], [0], out=f[4] | 3 | S(0), S(0)");
  expect_right("cholesky_solve.out: f[3,4,2], l[3,4,4], out=f[3,4,2] | 2 | S(0), R, S(2)");
}

TEST(Found, TheGradientOfLogSoftmaxHasTheTypeOfItsGradient) {
  expect_right("_log_softmax_backward_data: f16[5,3,4], f16[5,3,4], 1, double | 2 | R, S(1)");
}

// The decisions of calls that differ only in which dims are indexed were taken for each other.
TEST(Found, IndicesOfDifferentDimsAreDifferentCalls) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor whole = numbers({6, 4});
    const torch::Tensor x = mt::distribute_tensor(whole, mesh, {mt::Shard(0)});
    const torch::Tensor places = torch::tensor({1, 3, 0, 2, 2}, torch::kLong);
    const torch::Tensor i = mt::distribute_tensor(places, mesh, {mt::Replicate()});
    const auto rows = torch::indexing::Slice();
    EXPECT_TRUE(is_equal(mt::DTensor(x.index({i})).full_tensor(), whole.index({places})));
    EXPECT_TRUE(is_equal(mt::DTensor(x.index({rows, i})).full_tensor(), whole.index({rows, places})));
  });
}

// Kernels that broadcast the gradient into the shape that is asked for, where rules read the shape from the
// gradient.
TEST(Found, GradientsAreBroadcastIntoTheShapeThatIsAskedFor) {
  expect_right("select_backward: f[1,3], [2, 4, 3], 1, 2 | 2 | S(1)");
  expect_right("select_backward.out: f[1,1], [2, 4, 3], 1, 2, f[1,1,1] | 2 | R, R");
  expect_right("slice_backward: f[1,1,3], [2, 4, 3], 1, 2, 4, 1 | 2 | S(2)");
  expect_right("diagonal_backward: f[1,1], [2, 4, 4], 0, 1, 2 | 2 | R");
}

TEST(Refused, RandomOperatorsWithoutAGenerator) {
  EXPECT_EQ(refusal_of("rand.out: [5, 4], f[5,4] | 2 | S(0)"),
            "meshtorch: `aten::rand` takes no generator, and each rank would draw numbers of its own\n"
            "  overload: rand.out\n"
            "  do: use meshtorch::rand and its kin, or draw in place (uniform_, normal_)");
}

TEST(Refused, SparseTensorsMadeOfDistributedOnes) {
  EXPECT_EQ(
      refusal_of(
          "sparse_csr_tensor.crow_col_value_size: t{0,1,2}, t{0,1}, f[2], [2, 2], double | 2 | R, R, R"),
      "meshtorch: `aten::sparse_csr_tensor` of distributed tensors would be a SparseCsr tensor, and "
      "distributed "
      "tensors are strided\n  do: call it on full_tensor()");
}

TEST(Rounding, IsToldFromWrongNumbersByTheSameCallInDoublePrecision) {
  expect_right("orgqr: f32[3,5,4], f32[3,4] | 2 | P, S(1) | P");
  expect_right("gradient.tensorarrayint: f32[5,4], [d[5]], 0 | 2 | P, R | R");
  expect_right("_euclidean_dist: f16[5,4], f16[6,4] | 2 | R, P | R");
}

TEST(Rounding, OfPendingTermsIsThatOfTheLargestOfTheirSums) {
  expect_right("linalg_pinv.atol_rtol_float: d[5,4], hermitian=false | 3 | R | P");
  expect_right("_lu_with_info: d[1,1,2,6,6], check_errors=false | 2 | R | P");
  expect_right("special_psi: f[1,3,6,6] | 3 | R | P");
}

TEST(Rounding, OfAnIllConditionedCallIsWhatLastDigitsOfItsOperandsMake) {
  expect_right("linalg_pinv.atol_rtol_tensor: d[4,4], rtol=none | 2 | S(0) | R");
}

TEST(Rounding, DecidesWhichOfEqualNumbersIsTheLargest) {
  expect_right("linalg_matrix_norm: z[1,1,1,6,6], 1.0, keepdim=false | 2 | S(3) | R");
  expect_right(
      "linalg_matrix_rank.atol_rtol_tensor_out: f[3,4,4], rtol=f[4,4,3], out=f[3,4,4] | 2 | R, P, R");
}

// A number that is wrong by as little is told, where the call does not make much of last digits.
TEST(Rounding, IsNoExcuseForWhatIsWellConditioned) {
  const PlacedCall placed = PlacedCall::parse("mm: d[4,4], d[4,4] | 2 | S(0), R | R");
  testing::Run expected = *plain_run(placed.call);
  expected.gradients[0] = expected.gradients[0] + 1e-6;
  EXPECT_EQ(judge(placed, expected).kind, Verdict::Kind::wrong);
}

TEST(Refused, MoreTensorsToWriteThanResults) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor x = mt::distribute_tensor(numbers({2, 3}), mesh, {mt::Shard(0)});
    std::vector<torch::Tensor> outs(3, mt::zeros({3}, mesh, {mt::Replicate()}));
    EXPECT_EQ(error_of([&] { torch::unbind_copy_out(outs, x, 0); }),
              "meshtorch: `aten::unbind_copy` has 2 results, and got 3 tensors to write to\n"
              "  overload: unbind_copy.int_out\n  do: pass one tensor for each result");
  });
}

}  // namespace
}  // namespace meshtorch::testing
