// Plans: patterns, files, descriptions; what debug modes tell of a parallel model; drawings.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::ColwiseParallel;
using mt::DTensor;
using mt::Replicate;
using mt::RowwiseParallel;
using mt::Shard;

struct SmallMlpImpl : torch::nn::Module {
  SmallMlpImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return down(torch::relu(up(x))); }
  mt::nn::Linear up{8, 16};
  mt::nn::Linear down{16, 8};
};
MESHTORCH_MODULE(SmallMlp);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 3; ++i) layers->push_back(SmallMlp());
    register_module("layers", layers);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = x + layer->as<SmallMlp::Impl>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList layers;
  mt::nn::Linear head{8, 4};
};
MESHTORCH_MODULE(Stack);

const mt::ParallelizePlan& plan() {
  static const mt::ParallelizePlan plan{
      {"layers.*.up", ColwiseParallel()},
      {"layers.[0-2].down", RowwiseParallel({.output_layouts = Replicate()})}};
  return plan;
}

TEST(ParallelizeModule, PatternsMatchEachPartOfAName) {
  on_ranks(2, [](int) {
    Stack stack;
    mt::parallelize_module(*stack, line(2), plan());
    const auto parameters = stack->named_parameters();
    for (const char* name : {"layers.0.up.weight", "layers.2.up.bias"})
      EXPECT_EQ(DTensor(parameters[name]).placements(), mt::Placements{Shard(0)});
    EXPECT_EQ(DTensor(parameters["layers.1.down.weight"]).placements(), mt::Placements{Shard(1)});
    EXPECT_EQ(DTensor(parameters["layers.1.down.bias"]).placements(), mt::Placements{Replicate()});
    EXPECT_FALSE(mt::is_dtensor(parameters["head.weight"]));
  });
}

TEST(ParallelizeModule, UsesTheTpAxisOfALargerMesh) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    SmallMlp mlp;
    mt::parallelize_module(*mlp, mesh, {{"up", ColwiseParallel()}});
    EXPECT_EQ(DTensor(mlp->up->weight).device_mesh(), mesh["tp"]);
    mt::parallelize_module(*mlp, mesh, {{"down", RowwiseParallel()}}, {.axis = "dp"});
    EXPECT_EQ(DTensor(mlp->down->weight).device_mesh(), mesh["dp"]);
    const mt::DeviceMesh unnamed = mt::init_device_mesh(torch::kCPU, {2, 2}, {"a", "b"});
    EXPECT_NE(error_of([&] {
                mt::parallelize_module(*mlp, unnamed, {{"up", ColwiseParallel()}});
              }).find("works on one axis, the mesh has 2"),
              std::string::npos);
  });
}

// Losses and gradients of a model whose plan is for one axis and whose batches are split over the other; the
// head has no style. Ranks begin with different weights: those of the first count.
TEST(ParallelizeModule, OnOneAxisAndBatchesOnTheOtherTrainAsOneDevice) {
  on_ranks(4, [](int rank) {
    for (const std::vector<std::string>& names :
         std::vector<std::vector<std::string>>{{"dp", "tp"}, {"model", "data"}}) {
      const bool is_named_tp = names[1] == "tp";
      const std::string batch_axis = is_named_tp ? "dp" : "data";
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, names);
      Stack one_device;
      Stack split;
      const auto set = [](torch::nn::Module& module, int64_t seed) {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& p : module.parameters())
          p.set_data(numbers(p.sizes(), torch::kDouble, seed++) / 16);
      };
      set(*one_device, 0);
      set(*split, 100 * rank);
      mt::parallelize_module(
          *split, mesh,
          {{"layers.*.up", ColwiseParallel({.use_local_output = false})},
           {"layers.*.down", RowwiseParallel({.output_layouts = Replicate(), .use_local_output = false})}},
          {.axis = is_named_tp ? "" : "model"});
      mt::distribute_module(*split, mesh);
      mt::Placements by_batch(2);
      by_batch[names[0] == batch_axis ? 0 : 1] = Shard(0);
      torch::optim::SGD whole_sgd(one_device->parameters(), 0.1);
      torch::optim::SGD split_sgd(split->parameters(), 0.1);
      for (int64_t step = 0; step < 3; ++step) {
        const torch::Tensor x = numbers({5, 8}, torch::kDouble, 7 + step);  // batches of 3 and 2
        const torch::Tensor expected = one_device(x).square().mean();
        const torch::Tensor loss = split(mt::distribute_tensor(x, mesh, by_batch)).square().mean();
        EXPECT_TRUE(is_close(mt::full_tensor(loss.detach()), expected.detach(), 1e-9)) << step;
        for (auto* sgd : {&whole_sgd, &split_sgd}) sgd->zero_grad();
        expected.backward();
        loss.backward();
        for (auto* sgd : {&whole_sgd, &split_sgd}) sgd->step();
      }
      const auto trained = split->named_parameters();
      for (const auto& p : one_device->named_parameters())
        EXPECT_TRUE(is_close(mt::full_tensor(trained[p.key()].detach()), p.value().detach(), 1e-9))
            << p.key();
    }
  });
}

TEST(ParallelizeModule, ASourceRankGivesTheWeights) {
  on_ranks(2, [](int rank) {
    mt::nn::Linear linear(4, 4);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.fill_(rank + 1);
    }
    mt::nn::Linear own = mt::nn::Linear(std::dynamic_pointer_cast<mt::nn::Linear::Impl>(linear->clone()));
    mt::parallelize_module(*linear, line(2), ColwiseParallel());
    EXPECT_TRUE(is_equal(DTensor(linear->weight).to_local().detach(), torch::ones({2, 4})));
    mt::parallelize_module(*own, line(2), ColwiseParallel(), {.src_data_rank = std::nullopt});
    EXPECT_TRUE(is_equal(DTensor(own->weight).to_local().detach(), torch::full({2, 4}, rank + 1.0)));
  });
}

TEST(ParallelizeModule, APatternThatMatchesNothingNamesItsNeighbours) {
  on_ranks(2, [](int) {
    Stack stack;
    const std::string error =
        error_of([&] { mt::parallelize_module(*stack, line(2), {{"layers.1.upp", ColwiseParallel()}}); });
    EXPECT_NE(error.find("\"layers.1.upp\" matches no module"), std::string::npos) << error;
    EXPECT_NE(error.find("near names: layers.1.up, "), std::string::npos) << error;
    mt::parallelize_module(*stack, line(2), {{"layers.1.upp", ColwiseParallel()}},
                           {.warn_if_unmatched = true});
  });
}

TEST(ParallelizeModule, AClonedModuleIsParallelToo) {
  on_ranks(2, [](int) {
    mt::nn::Linear linear(6, 4);
    const torch::Tensor x = numbers({3, 6});
    mt::parallelize_module(*linear, line(2), ColwiseParallel({.output_layouts = Replicate()}));
    const auto copy = std::dynamic_pointer_cast<mt::nn::Linear::Impl>(linear->clone());
    EXPECT_EQ(DTensor(copy->weight).placements(), mt::Placements{Shard(0)});
    EXPECT_TRUE(is_equal(copy->forward(x), linear(x)));
    EXPECT_FALSE(copy->weight.is_same(linear->weight));
  });
}

TEST(Plan, DescribesWhatEachModuleGets) {
  const Stack stack;
  const mt::ParallelizePlan small{{"head", ColwiseParallel({.output_layouts = Replicate()})},
                                  {"layers.*.down", RowwiseParallel()},
                                  {"tail", mt::SequenceParallel()}};
  EXPECT_EQ(
      mt::describe_plan(*stack, small),
      "head           torch::nn::LinearImpl  ColwiseParallel(output_layouts=R, use_local_output=true)\n"
      "layers.0.down  torch::nn::LinearImpl  RowwiseParallel(use_local_output=true)\n"
      "layers.1.down  torch::nn::LinearImpl  RowwiseParallel(use_local_output=true)\n"
      "layers.2.down  torch::nn::LinearImpl  RowwiseParallel(use_local_output=true)\n"
      "tail           no such module         SequenceParallel(sequence_dim=1, use_local_output=false)\n");
}

TEST(Plan, IsWrittenAndReadAsJson) {
  const mt::ParallelizePlan all{
      {"a.*", ColwiseParallel({.input_layouts = Shard(0), .use_local_output = false})},
      {"b", RowwiseParallel({.output_layouts = Shard(1)})},
      {"c", mt::SequenceParallel({.sequence_dim = 0})},
      {"d", mt::NoParallel()},
      {"e", mt::PrepareModuleInput({.input_layouts = {Shard(0), std::nullopt},
                                    .desired_input_layouts = {Replicate(), std::nullopt},
                                    .input_kwarg_layouts = {{"mask", Shard(0)}},
                                    .desired_input_kwarg_layouts = {{"mask", Replicate()}}})},
      {"f", mt::PrepareModuleOutput({.output_layouts = mt::Partial(), .desired_output_layouts = Shard(-1)})},
      {"g", mt::PrepareModuleInputOutput({.input_layouts = Shard(0),
                                          .desired_input_layouts = Replicate(),
                                          .output_layouts = Replicate(),
                                          .desired_output_layouts = Shard(0)})}};
  const std::string text = all.to_json();
  const mt::ParallelizePlan read = mt::ParallelizePlan::from_json(text);
  ASSERT_EQ(read.entries().size(), all.entries().size());
  for (size_t i = 0; i < all.entries().size(); ++i) {
    EXPECT_EQ(read.entries()[i].first, all.entries()[i].first);
    EXPECT_EQ(read.entries()[i].second->to_string(), all.entries()[i].second->to_string());
  }
  EXPECT_EQ(read.to_json(), text);
  EXPECT_NE(error_of([] {
              mt::ParallelizePlan::from_json(R"([{"modules": "a", "style": "Diagonal"}])");
            }).find("not known\n  style: \"Diagonal\""),
            std::string::npos);
  EXPECT_NE(error_of([] {
              mt::ParallelizePlan::from_json(
                  R"([{"modules": "a", "style": "ColwiseParallel", "input_layouts": "X"}])");
            }).find("\"X\" is no placement"),
            std::string::npos);
  EXPECT_NE(error_of([] { mt::ParallelizePlan::from_json("["); }).find("the plan cannot be read"),
            std::string::npos);
}

TEST(CommDebug, CountsByModuleForwardAndBackward) {
  on_ranks(2, [](int) {
    Stack stack;
    mt::parallelize_module(*stack, line(2), plan());
    const mt::CommDebugMode comm;
    stack(torch::ones({3, 8}).requires_grad_()).sum().backward();
    const auto& modules = comm.get_module_counts();
    const auto count = [&](const std::string& path, bool backward) {
      const auto found = modules.find(path);
      if (found == modules.end()) return int64_t{-1};
      return (backward ? found->second.backward : found->second.forward)[mt::Collective::all_reduce];
    };
    EXPECT_EQ(count("Stack", false), 3) << comm.module_table();
    EXPECT_EQ(count("Stack", true), 3) << comm.module_table();
    EXPECT_EQ(count("Stack.layers.1", false), 1);
    EXPECT_EQ(count("Stack.layers.1.down", false), 1);
    EXPECT_EQ(count("Stack.layers.1.down", true), 0);
    EXPECT_EQ(count("Stack.layers.1.up", false), 0);
    EXPECT_EQ(count("Stack.layers.1.up", true), 1);
    EXPECT_NE(comm.module_table().find("Stack.layers.2.up    backward"), std::string::npos)
        << comm.module_table();
    EXPECT_NE(comm.json().find("\"Stack.layers.2.up\""), std::string::npos);
  });
}

TEST(CommDebug, CountsWhatHappensOutsideModulesInARowOfItsOwn) {
  on_ranks(2, [](int) {
    Stack stack;
    mt::parallelize_module(*stack, line(2), plan());
    const mt::CommDebugMode comm;
    const torch::Tensor y = stack(torch::ones({3, 8}));
    mt::wait_tensor(mt::all_gather_tensor(y.detach(), 0, {}));
    const std::string table = comm.module_table();
    EXPECT_NE(table.find("(outside)            forward            0"), std::string::npos) << table;
    const auto row = table.substr(table.find("(outside)"),
                                  table.find('\n', table.find("(outside)")) - table.find("(outside)"));
    EXPECT_TRUE(row.ends_with(" 1  1") || row.ends_with("1      1")) << table;
  });
}

TEST(ShardingTable, ListsEveryParameter) {
  on_ranks(2, [](int) {
    SmallMlp mlp;
    mt::parallelize_module(*mlp, line(2), {{"up", ColwiseParallel()}});
    EXPECT_EQ(mt::sharding_table(*mlp),
              "parameter    shape    type   placements  this rank's shape\n"
              "up.weight    (16, 8)  Float  [S(0)]      (8, 8)\n"
              "up.bias      (16)     Float  [S(0)]      (8)\n"
              "down.weight  (8, 16)  Float  plain       (8, 16)\n"
              "down.bias    (8)      Float  plain       (8)\n");
  });
}

TEST(VisualizeSharding, DrawsOneTwoAndMoreDims) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh row = line(4);
    const mt::DeviceMesh grid = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const auto body = [](const std::string& text) { return text.substr(text.find('\n') + 1); };
    EXPECT_EQ(body(mt::visualize_sharding(mt::distribute_tensor(torch::ones({7}), row, {Shard(0)}))),
              "  0:2      2:4      4:6      6:7\n"
              "+--------+--------+--------+--------+\n"
              "| rank 0 | rank 1 | rank 2 | rank 3 |\n"
              "+--------+--------+--------+--------+\n");
    EXPECT_EQ(body(mt::visualize_sharding(
                  mt::distribute_tensor(torch::ones({4, 6}), grid, {Replicate(), Shard(1)}))),
              "     0:3         3:6\n"
              "   +-----------+-----------+\n"
              "0:4| rank 0, 2 | rank 1, 3 |\n"
              "   +-----------+-----------+\n");
    const mt::DTensor cube = mt::distribute_tensor(torch::ones({4, 6, 2}), grid, {Shard(0), Shard(2)});
    EXPECT_EQ(body(mt::visualize_sharding(cube)),
              "[0:2, 0:6, 0:1]  rank 0\n[0:2, 0:6, 1:2]  rank 1\n[2:4, 0:6, 0:1]  rank 2\n[2:4, 0:6, 1:2]  "
              "rank 3\n");
    EXPECT_NE(mt::visualize_sharding_svg(cube).find("rank 3</text>"), std::string::npos);
    EXPECT_NE(mt::visualize_sharding_html(cube).find("</svg>"), std::string::npos);
  });
}

}  // namespace
}  // namespace meshtorch::testing
