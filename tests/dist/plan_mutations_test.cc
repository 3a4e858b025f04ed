// Plans as JSON, changed at random: understood or refused with words.
#include "../mutations.h"

#include "ranks.h"

namespace meshtorch::testing {
namespace {

TEST(Mutations, OfPlansAreReadOrRefused) {
  const mt::ParallelizePlan plan{
      {"a.*", mt::ColwiseParallel({.input_layouts = mt::Shard(0), .use_local_output = false})},
      {"b", mt::RowwiseParallel({.output_layouts = mt::Shard(1)})},
      {"c", mt::SequenceParallel({.sequence_dim = 0})},
      {"e", mt::PrepareModuleInput({.input_layouts = {mt::Shard(0), std::nullopt},
                                    .desired_input_layouts = {mt::Replicate(), std::nullopt}})}};
  expect_read_or_refused({mt::ParallelizePlan{{"d", mt::NoParallel()}}.to_json(), plan.to_json()},
                         [](const std::string& text) { mt::ParallelizePlan::from_json(text); });
}

}  // namespace
}  // namespace meshtorch::testing
