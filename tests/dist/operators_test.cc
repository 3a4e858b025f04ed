// Every sample operator, on many layouts of its inputs, forward and backward, against the plain run.
#include <random>

#include "samples.h"

namespace meshtorch::testing {
namespace {

using mt::Placements;
using torch::Tensor;

// A draw of one placement for a tensor; integers are never pending.
mt::Placement draw(std::mt19937& random, const Tensor& t) {
  const auto choices = static_cast<std::uint32_t>(t.dim()) + (t.is_floating_point() ? 2U : 1U);
  const std::uint32_t pick = random() % choices;
  if (pick < static_cast<std::uint32_t>(t.dim())) return mt::Shard(pick);
  return pick == static_cast<std::uint32_t>(t.dim()) ? mt::Replicate() : mt::Partial();
}

// The tensor on the mesh: terms of pending sums are unequal on purpose.
Tensor placed(const Tensor& whole, const mt::DeviceMesh& mesh, const Placements& placements) {
  Tensor local = whole;
  Placements without_terms = placements;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    mt::Placement& p = without_terms[static_cast<std::size_t>(axis)];
    if (!p.is_partial()) continue;
    p = mt::Replicate();
    const int64_t index = mesh.get_local_rank(axis);
    const int64_t count = mesh.size(axis);
    // All terms but the last are small exact numbers, so that they add up to the tensor without rounding.
    const auto term = [&](int64_t i) {
      return numbers(whole.sizes(), whole.scalar_type(), 40 + 8 * axis + i);
    };
    const Tensor before = local;
    local = index + 1 < count ? term(index) : before.clone();
    for (int64_t i = 0; index + 1 == count && i + 1 < count; ++i) local -= term(i);
  }
  const mt::DTensor split =
      mt::distribute_tensor(local, mesh, without_terms, {.src_data_rank = std::nullopt});
  return mt::DTensor::from_local(split.to_local(), mesh, placements, {.shape = whole.sizes().vec()}).detach();
}

std::string difference(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  if (actual.size() != expected.size())
    return c10::str(actual.size(), " tensors, expected ", expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!expected[i].defined() && !actual[i].defined()) continue;
    if (!expected[i].defined() || !actual[i].defined())
      return c10::str("tensor ", i, " is defined on one side only");
    if (actual[i].sizes() != expected[i].sizes())
      return c10::str("tensor ", i, " has shape ", actual[i].sizes(), ", expected ", expected[i].sizes());
    if (!mt::is_dtensor(actual[i])) return c10::str("tensor ", i, " is plain");
    const Tensor whole = mt::DTensor(actual[i]).full_tensor().detach();
    const auto same =
        is_close(whole, expected[i].detach(), whole.scalar_type() == torch::kFloat ? 1e-6 : 1e-9);
    if (!same)
      return c10::str("tensor ", i, " ", mt::to_string(mt::DTensor(actual[i]).placements()), ": ",
                      same.message());
  }
  return {};
}

// Empty if right, else what is wrong.
std::string check(const Sample& sample, const mt::DeviceMesh& mesh, const std::vector<Placements>& layouts,
                  const Run& expected) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < layouts.size(); ++i)
    inputs.push_back(placed(sample.inputs[i], mesh, layouts[i]));
  const Placements whole(static_cast<std::size_t>(mesh.ndim()));
  const Run actual = run_sample(sample, inputs, [&](const Tensor& w) -> Tensor {
    return mt::distribute_tensor(w, mesh, whole, {.src_data_rank = std::nullopt});
  });
  const std::string results = difference(actual.results, expected.results);
  if (!results.empty()) return "result " + results;
  const std::string gradients = difference(actual.gradients, expected.gradients);
  return gradients.empty() ? "" : "gradient " + gradients;
}

void check_samples(const std::vector<int64_t>& shape, int draws, std::uint32_t seed) {
  mt::set_fallback_policy(mt::FallbackPolicy::silent);
  const std::vector<Sample> samples = all_samples();
  for (const Sample& sample : samples) {
    // A world of its own for each operator: one that fails must not stop the others.
    on_ranks(static_cast<int>(c10::multiply_integers(shape)), [&](int rank) {
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, shape);
      const Run expected = run_sample(sample, sample.inputs, [](const Tensor& w) { return w; });
      std::mt19937 random(seed);
      for (int d = 0; d < draws; ++d) {
        std::vector<Placements> layouts;
        std::string what = c10::str(sample.name, " on mesh ", c10::IntArrayRef(shape), ", seed ", seed, ":");
        for (const Tensor& t : sample.inputs) {
          layouts.emplace_back();
          for (std::size_t axis = 0; axis < shape.size(); ++axis) layouts.back().push_back(draw(random, t));
          what += c10::str(" ", t.sizes(), mt::to_string(layouts.back()));
        }
        std::string wrong;
        try {
          wrong = check(sample, mesh, layouts, expected);
        } catch (const std::exception& error) {
          throw std::runtime_error(what + ": " + std::string(error.what()).substr(0, 600));
        }
        if (!wrong.empty() && rank == 0) ADD_FAILURE() << what << ": " << wrong;
        if (!wrong.empty()) return;
      }
    });
  }
  mt::set_fallback_policy(mt::FallbackPolicy::warn);
}

TEST(Operators, AreRightOnTwoRanks) { check_samples({2}, ranks_are_processes() ? 2 : 12, 1); }
TEST(Operators, AreRightOnThreeRanks) { check_samples({3}, ranks_are_processes() ? 2 : 12, 2); }
TEST(Operators, AreRightOnAMeshOfTwoAxes) { check_samples({2, 2}, ranks_are_processes() ? 2 : 12, 3); }

}  // namespace
}  // namespace meshtorch::testing
