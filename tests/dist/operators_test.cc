// Every sample operator on drawn layouts of its inputs, forward and backward, against the plain run: on gloo
// processes too, which the test of the whole namespace has not.
#include <random>

#include "placed_call.h"
#include "samples.h"

namespace meshtorch::testing {
namespace {

// A draw of one placement for a tensor; integers are never pending.
mt::Placement draw(std::mt19937& random, const torch::Tensor& t) {
  const auto dims = static_cast<std::uint32_t>(t.dim());
  const std::uint32_t pick = random() % (dims + (t.is_floating_point() ? 2U : 1U));
  if (pick < dims) return mt::Shard(pick);
  return pick == dims ? mt::Replicate() : mt::Partial();
}

PlacedCall drawn(const Call& sample, const std::vector<int64_t>& shape, std::mt19937& random) {
  PlacedCall placed{sample, shape, {}};
  for (const torch::Tensor& t : sample.tensors()) {
    placed.placements.emplace_back();
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      placed.placements.back().push_back(draw(random, t));
  }
  return placed;
}

constexpr int kDraws = 2;

// Each call in a world of its own: one that is wrong does not stop the others.
void check_on_threads(const std::vector<int64_t>& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (const Call& sample : all_samples()) {
    const std::optional<Run> expected = plain_run(sample);
    for (int d = 0; expected && d < kDraws; ++d) {
      const PlacedCall placed = drawn(sample, shape, random);
      const Verdict verdict = judge(placed, *expected);
      if (verdict.kind != Verdict::Kind::right)
        ADD_FAILURE() << "seed " << seed << ", " << placed.to_string() << ": " << verdict.what.substr(0, 600);
    }
  }
}

void check_on_processes(const std::vector<int64_t>& shape, std::uint32_t seed) {
  mt::set_fallback_policy(mt::FallbackPolicy::silent);
  std::vector<std::optional<Run>> expected;
  for (const Call& sample : all_samples()) expected.push_back(plain_run(sample));
  on_ranks(static_cast<int>(c10::multiply_integers(shape)), [&](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, shape);
    std::mt19937 random(seed);
    for (std::size_t s = 0; s < expected.size(); ++s) {
      if (!expected[s]) continue;
      const PlacedCall placed = drawn(all_samples()[s], shape, random);
      try {
        run_on_rank(placed, mesh, *expected[s]);
      } catch (const std::exception& error) {
        throw std::runtime_error("seed " + std::to_string(seed) + ", " + placed.to_string() + ": " +
                                 std::string(error.what()).substr(0, 600));
      }
    }
  });
  mt::set_fallback_policy(mt::FallbackPolicy::warn);
}

void check_samples(const std::vector<int64_t>& shape, std::uint32_t seed) {
  ranks_are_processes() ? check_on_processes(shape, seed) : check_on_threads(shape, seed);
}

TEST(Operators, AreAcceptedByPlainLibTorch) {
  for (const Call& sample : all_samples()) EXPECT_TRUE(plain_run(sample)) << sample.to_string();
}
TEST(Operators, AreRightOnTwoRanks) { check_samples({2}, 1); }
TEST(Operators, AreRightOnThreeRanks) { check_samples({3}, 2); }
TEST(Operators, AreRightOnAMeshOfTwoAxes) { check_samples({2, 2}, 3); }

}  // namespace
}  // namespace meshtorch::testing
