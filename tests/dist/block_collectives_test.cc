// What a transformer block communicates, against the count by hand: the table of tensor and sequence parallel
// training.
#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::ColwiseParallel;
using mt::PrepareModuleInput;
using mt::Replicate;
using mt::RowwiseParallel;
using mt::SequenceParallel;
using mt::Shard;

using Counts = std::map<std::string, int64_t>;  // "forward all_reduce" -> calls

Counts counts_of(const mt::CommDebugMode& comm, const std::string& module) {
  Counts counts;
  const auto& modules = comm.get_module_counts();
  const auto found = modules.find(module);
  if (found == modules.end()) return counts;
  for (const auto& [c, statistics] : found->second.forward.statistics())
    counts["forward " + std::string(mt::to_string(c))] = statistics.count;
  for (const auto& [c, statistics] : found->second.backward.statistics())
    counts["backward " + std::string(mt::to_string(c))] = statistics.count;
  return counts;
}

mt::ParallelizePlan tensor_parallel() {
  const PrepareModuleInput whole({.input_layouts = Replicate(), .desired_input_layouts = Replicate()});
  return {{"attention", whole}, {"attention.[qkv]", ColwiseParallel()}, {"attention.out", RowwiseParallel()},
          {"mlp", whole},       {"mlp.up", ColwiseParallel()},          {"mlp.down", RowwiseParallel()}};
}

mt::ParallelizePlan sequence_parallel() {
  const PrepareModuleInput gather({.input_layouts = Shard(1), .desired_input_layouts = Replicate()});
  const RowwiseParallel back_to_sequence({.output_layouts = Shard(1), .use_local_output = false});
  return {{"norm[12]", SequenceParallel()},    {"attention", gather}, {"attention.[qkv]", ColwiseParallel()},
          {"attention.out", back_to_sequence}, {"mlp", gather},       {"mlp.up", ColwiseParallel()},
          {"mlp.down", back_to_sequence}};
}

// | tensor parallel | forward      | backward     |
// | attention       | 1 all_reduce | 1 all_reduce |
// | mlp             | 1 all_reduce | 1 all_reduce |
TEST(BlockCollectives, TensorParallelReducesOnceEachWay) {
  on_ranks(4, [](int) {
    Block block = filled(Block(8, 2, 12));
    mt::parallelize_module(*block, line(4), tensor_parallel());
    const mt::CommDebugMode comm;
    block(numbers({3, 4, 8}, torch::kDouble).requires_grad_()).square().sum().backward();
    const Counts once{{"forward all_reduce", 1}, {"backward all_reduce", 1}};
    EXPECT_EQ(counts_of(comm, "Block.attention"), once) << comm.module_table();
    EXPECT_EQ(counts_of(comm, "Block.mlp"), once) << comm.module_table();
    EXPECT_EQ(counts_of(comm, "Block"), (Counts{{"forward all_reduce", 2}, {"backward all_reduce", 2}}))
        << comm.module_table();
    EXPECT_EQ(comm.get_total_counts(), 4) << comm.module_table();
  });
}

// | sequence parallel | forward                        | backward                       |
// | attention         | 1 all_gather, 1 reduce_scatter | 1 all_gather, 1 reduce_scatter |
// | mlp               | 1 all_gather, 1 reduce_scatter | 1 all_gather, 1 reduce_scatter |
// | gradients         |                                | 1 all_reduce: 2 norms, 2 biases after the split
// dims, in one |
TEST(BlockCollectives, SequenceParallelGathersAndScattersOnceEachWay) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    Block block = filled(Block(8, 2, 12));
    mt::parallelize_module(*block, mesh, sequence_parallel());
    const torch::Tensor x =
        mt::distribute_tensor(numbers({3, 4, 8}, torch::kDouble), mesh, {Shard(1)}).requires_grad_();
    const mt::CommDebugMode comm;
    block(x).square().sum().backward();
    const Counts once{{"forward all_gather_into_tensor", 1},
                      {"forward reduce_scatter_tensor", 1},
                      {"backward all_gather_into_tensor", 1},
                      {"backward reduce_scatter_tensor", 1}};
    EXPECT_EQ(counts_of(comm, "Block.attention"), once) << comm.module_table();
    EXPECT_EQ(counts_of(comm, "Block.mlp"), once) << comm.module_table();
    EXPECT_EQ(comm.get_total_counts(), 8) << comm.module_table();
    mt::reduce_gradients(block->parameters());
    EXPECT_EQ(comm.get_total_counts(), 9) << comm.table();
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce_coalesced], 1) << comm.table();
  });
}

TEST(HeadSplitAttention, TrainsWithoutAnyCommunication) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    std::vector<torch::Tensor> plain, split;
    for (int i = 0; i < 3; ++i) {  // B 2, H 7 heads over 4 ranks, S 5, C 4
      plain.push_back(numbers({2, 7, 5, 4}, torch::kDouble, i).requires_grad_());
      split.push_back(mt::distribute_tensor(plain.back().detach(), mesh, {Shard(1)}).requires_grad_());
    }
    const auto attention = [](const std::vector<torch::Tensor>& in, bool causal) {
      return torch::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, causal);
    };
    for (const bool causal : {false, true}) {
      attention(plain, causal).square().sum().backward();
      {
        const mt::CommDebugMode comm;
        attention(split, causal).square().sum().backward();
        EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
      }
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(mt::DTensor(split[i].grad()).placements(), mt::Placements{Shard(1)});
        EXPECT_TRUE(is_close(mt::DTensor(split[i].grad()).full_tensor(), plain[i].grad(), 1e-10));
      }
    }
  });
}

TEST(HeadSplitAttention, WithGroupedHeadsAndAMaskTrainsWithoutAnyCommunication) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const auto on_heads = [&](const torch::Tensor& t) {
      return mt::distribute_tensor(t, mesh, {Shard(1)}).requires_grad_();
    };
    const torch::Tensor q = numbers({2, 8, 5, 4}, torch::kDouble),
                        k = numbers({2, 2, 5, 4}, torch::kDouble, 1),
                        v = numbers({2, 2, 5, 4}, torch::kDouble, 2),
                        mask = numbers({5, 5}, torch::kDouble, 3);
    const torch::Tensor expected =
        torch::scaled_dot_product_attention(q, k, v, mask, 0.0, false, c10::nullopt, /*enable_gqa=*/true);
    const torch::Tensor mask_everywhere = mt::distribute_tensor(mask, mesh, {Replicate()});
    torch::Tensor actual;
    {
      const mt::CommDebugMode comm;
      actual = torch::scaled_dot_product_attention(on_heads(q), on_heads(k), on_heads(v), mask_everywhere,
                                                   0.0, false, c10::nullopt, true);
      actual.sum().backward();
      EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 0) << comm.table();
    }
    EXPECT_TRUE(is_close(mt::DTensor(actual.detach()).full_tensor(), expected, 1e-10));
  });
}

}  // namespace
}  // namespace meshtorch::testing
