// Every sample operator on drawn layouts of its inputs and incoming gradients, forward and backward, against
// the plain run: on gloo processes too, which the test of the whole namespace has not.
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

std::vector<mt::Placements> drawn_for(const std::vector<torch::Tensor>& tensors, std::size_t axes,
                                      std::mt19937& random) {
  std::vector<mt::Placements> all;
  for (const torch::Tensor& t : tensors) {
    all.emplace_back();
    for (std::size_t axis = 0; axis < axes; ++axis) all.back().push_back(draw(random, t));
  }
  return all;
}

// On gloo processes, where a collective takes milliseconds, one draw for every `step`-th sample.
void check_samples(const std::vector<int64_t>& shape, std::uint32_t seed, std::size_t step_on_processes) {
  const int draws = ranks_are_processes() ? 1 : 2;
  const std::size_t step = ranks_are_processes() ? step_on_processes : 1;
  mt::set_fallback_policy(mt::FallbackPolicy::silent);
  std::vector<std::optional<Run>> expected;
  for (const Call& sample : all_samples()) expected.push_back(plain_run(sample));
  on_ranks(static_cast<int>(c10::multiply_integers(shape)), [&](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, shape);
    std::mt19937 random(seed);
    for (std::size_t s = 0; s < expected.size(); s += step) {
      for (int d = 0; expected[s] && d < draws; ++d) {
        const Call& sample = all_samples()[s];
        const PlacedCall placed{sample, shape, drawn_for(sample.tensors(), shape.size(), random),
                                drawn_for(expected[s]->incoming, shape.size(), random)};
        try {
          run_on_rank(placed, mesh, *expected[s]);
        } catch (const std::exception& error) {
          throw std::runtime_error("seed " + std::to_string(seed) + ", " + placed.to_string() + ": " +
                                   std::string(error.what()).substr(0, 600));
        }
      }
    }
  });
  mt::set_fallback_policy(mt::FallbackPolicy::warn);
}

TEST(Operators, AreAcceptedByPlainLibTorch) {
  for (const Call& sample : all_samples()) EXPECT_TRUE(plain_run(sample)) << sample.to_string();
}
TEST(Operators, AreRightOnTwoRanks) { check_samples({2}, 1, 1); }
TEST(Operators, AreRightOnThreeRanks) { check_samples({3}, 2, 3); }
TEST(Operators, AreRightOnAMeshOfTwoAxes) { check_samples({2, 2}, 3, 3); }

}  // namespace
}  // namespace meshtorch::testing
