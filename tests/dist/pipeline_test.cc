// Pipelines train as one device does, by every schedule, on threads and processes.
#include "data_parallel_training.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

constexpr int kInputWidth = 5;

// A Sequential with some more children than stages; parameters are equal on all ranks.
torch::nn::Sequential tanh_layers(int stages) {
  torch::nn::Sequential model;
  for (int i = 0; i <= stages; ++i) {
    model->push_back("linear" + std::to_string(i),
                     torch::nn::Linear(kInputWidth + i % 3, kInputWidth + (i + 1) % 3));
    model->push_back("tanh" + std::to_string(i), torch::nn::Tanh());
  }
  const torch::NoGradGuard no_grad;
  model->to(torch::kDouble);
  int seed = 0;
  for (Tensor& parameter : model->parameters())
    parameter.copy_(numbers(parameter.sizes().vec(), torch::kDouble, ++seed) * 0.3);
  return model;
}

Tensor input_rows(int64_t rows, int seed) { return numbers({rows, kInputWidth}, torch::kDouble, 100 + seed); }
Tensor target_rows(int stages, int64_t rows, int seed) {
  return numbers({rows, kInputWidth + (stages + 1) % 3}, torch::kDouble, 200 + seed);
}

Tensor squared_error(const Tensor& output, const Tensor& target) { return torch::mse_loss(output, target); }

std::vector<int> stages_of_rank(const mt::PipelineTable& table, int rank) {
  const std::vector<int> ranks = mt::prove(table).rank_of_stage;
  std::vector<int> stages;
  for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
    if (ranks[stage] == rank) stages.push_back(static_cast<int>(stage));
  }
  return stages;
}

// This rank's part of a model.
struct RankModel {
  std::vector<mt::PipelineStage> stages;
  std::vector<Tensor> parameters;
  std::vector<Tensor> expected;  // the same parameters of another model
};

RankModel model_of_rank(const mt::PipelineTable& table, torch::nn::Sequential model,
                        torch::nn::Sequential plain, const mt::Group& group) {
  RankModel mine;
  const auto count = static_cast<int>(mt::prove(table).rank_of_stage.size());
  const std::vector<torch::nn::Sequential> parts = mt::split(model, count);
  const std::vector<torch::nn::Sequential> plain_parts = mt::split(plain, count);
  for (const int stage : stages_of_rank(table, group.rank())) {
    mine.stages.emplace_back(parts[stage], stage, count, group);
    for (const Tensor& parameter : parts[stage]->parameters()) mine.parameters.push_back(parameter);
    for (const Tensor& parameter : plain_parts[stage]->parameters()) mine.expected.push_back(parameter);
  }
  return mine;
}

void expect_close_lists(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << what << " " << i;
    if (!actual[i].defined()) continue;
    EXPECT_TRUE(is_close(actual[i], expected[i], 1e-9)) << what << " " << i;
  }
}

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

struct PipelineCase {
  std::string schedule;
  int ranks;
  int microbatches;
};

void PrintTo(const PipelineCase& c, std::ostream* out) {
  *out << c.schedule << ", " << c.ranks << " ranks, " << c.microbatches << " micro-batches";
}

std::vector<PipelineCase> pipeline_cases() {
  std::vector<PipelineCase> cases;
  for (const std::string& schedule : mt::pipeline_schedule_names()) {
    for (const int ranks : {2, 4}) {
      for (const int microbatches : {1, 2, 4, 8, 12}) {
        if (schedule == "DualPipeV" && microbatches < 2 * ranks) continue;
        cases.push_back({schedule, ranks, microbatches});
      }
    }
  }
  return cases;
}

class PipelineTraining : public ::testing::TestWithParam<PipelineCase> {};
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineTraining, ::testing::ValuesIn(pipeline_cases()),
                         [](const auto& info_) {
                           return info_.param.schedule + "_" + std::to_string(info_.param.ranks) + "Ranks_" +
                                  std::to_string(info_.param.microbatches) + "MicroBatches";
                         });

// Rows are no multiple of the micro-batches; every second step adds its gradients to those of the one before.
TEST_P(PipelineTraining, EqualsOneDeviceAfterTenSteps) {
  const PipelineCase& param = GetParam();
  on_ranks(param.ranks, [&](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {param.ranks}, {"pp"});
    const mt::PipelineTable table =
        mt::make_pipeline_table(param.schedule, {param.ranks, param.microbatches});
    const int stages = mt::prove(table).stages;
    torch::nn::Sequential plain = tanh_layers(stages);
    const RankModel mine = model_of_rank(table, tanh_layers(stages), plain, mesh["pp"]);
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    torch::optim::Adam optimizer(mine.parameters, torch::optim::AdamOptions(0.01));
    torch::optim::Adam plain_optimizer(plain->parameters(), torch::optim::AdamOptions(0.01));
    const bool has_last = mt::prove(table).rank_of_stage.back() == rank;
    const int64_t rows = 2 * param.microbatches + 1;
    for (int step = 0; step < 10; ++step) {
      const Tensor x = input_rows(rows, step);
      const Tensor target = target_rows(stages, rows, step);
      const Tensor output = plain->forward(x);
      const Tensor loss = squared_error(output, target);
      loss.backward();
      const mt::PipelineResult result = pipeline.step({x}, target);
      if (has_last) {
        EXPECT_TRUE(is_close(result.loss, loss.detach(), 1e-9));
        ASSERT_EQ(result.outputs.size(), 1U);
        EXPECT_TRUE(is_close(result.outputs[0], output.detach(), 1e-9));
        EXPECT_EQ(static_cast<int>(result.losses.size()), param.microbatches);
      } else {
        EXPECT_FALSE(result.loss.defined());
      }
      expect_close_lists(gradients_of(mine.parameters), gradients_of(mine.expected), "gradient");
      if (step % 2 == 0) continue;
      for (torch::optim::Optimizer* each : {static_cast<torch::optim::Optimizer*>(&optimizer),
                                            static_cast<torch::optim::Optimizer*>(&plain_optimizer)}) {
        each->step();
        each->zero_grad();
      }
    }
    expect_close_lists(mine.parameters, mine.expected, "parameter");
  });
}

TEST(Pipeline, TakesAnyTableThatPassesTheProof) {
  on_ranks(2, [](int rank) {
    // Rank 1 has the first and the last stage.
    const mt::PipelineTable table =
        mt::PipelineTable::from_csv("1F0,1F1,,1I0,1B1,1W0\n0F0,0F1,2F0,2F1,2I0,2I1,2W1,0B0,2W0,0I1,0W1\n");
    torch::nn::Sequential plain = tanh_layers(3);
    const RankModel mine = model_of_rank(table, tanh_layers(3), plain, mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    const Tensor target = target_rows(3, 5, 1);
    squared_error(plain->forward(input_rows(5, 1)), target).backward();
    const mt::PipelineResult result = pipeline.step({input_rows(5, 1)}, target);
    expect_close_lists(gradients_of(mine.parameters), gradients_of(mine.expected), "gradient");
    EXPECT_EQ(result.loss.defined(), rank == 1);
  });
}

TEST(Pipeline, RunsTheRowOfItsRankInOrder) {
  on_ranks(2, [](int rank) {
    const mt::PipelineTable table = mt::make_pipeline_table("1F1B", {2, 3});
    const RankModel mine = model_of_rank(table, tanh_layers(2), tanh_layers(2), mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    const mt::PipelineResult result = pipeline.step({input_rows(3, 0)}, target_rows(2, 3, 0));
    std::vector<mt::PipelineAction> actions;
    double now = 0;
    for (const mt::PlannedAction& done : result.timeline) {
      actions.push_back(done.action);
      EXPECT_LE(now, done.begin);
      EXPECT_LE(done.begin, done.end);
      now = done.end;
    }
    EXPECT_EQ(actions, pipeline.table().rows[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(pipeline.table(), mt::add_messages(table));
  });
}

TEST(Pipeline, GoesForwardWithoutGradients) {
  on_ranks(2, [](int rank) {
    const mt::PipelineTable table = mt::make_pipeline_table("ZBVZeroBubble", {2, 4});
    torch::nn::Sequential plain = tanh_layers(4);
    const RankModel mine = model_of_rank(table, tanh_layers(4), plain, mt::Group());
    mt::Pipeline pipeline(mine.stages, table);
    const std::vector<Tensor> outputs = pipeline.forward({input_rows(6, 3)});
    ASSERT_EQ(outputs.size(), rank == 0 ? 1U : 0U);
    if (rank == 0) {
      EXPECT_TRUE(is_close(outputs[0], plain->forward(input_rows(6, 3)).detach(), 1e-9));
      EXPECT_FALSE(outputs[0].requires_grad());
    }
    EXPECT_EQ(error_of([&] { pipeline.step({input_rows(6, 3)}, target_rows(4, 6, 3)); }),
              "meshtorch: step of a pipeline whose loss was not given\n  do: give it a loss, or call "
              "forward(inputs)");
  });
}

TEST(Pipeline, TrainsAfterItWentForward) {
  on_ranks(2, [](int) {
    const mt::PipelineTable table = mt::make_pipeline_table("GPipe", {2, 2});
    torch::nn::Sequential plain = tanh_layers(2);
    const RankModel mine = model_of_rank(table, tanh_layers(2), plain, mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    pipeline.forward({input_rows(4, 0)});
    pipeline.step({input_rows(4, 0)}, target_rows(2, 4, 0));
    squared_error(plain->forward(input_rows(4, 0)), target_rows(2, 4, 0)).backward();
    expect_close_lists(gradients_of(mine.parameters), gradients_of(mine.expected), "gradient");
  });
}

// Stages that are functions of several tensors: whole numbers, one that is not used, one passed through.
TEST(Pipeline, PassesAnyTensorsBetweenStages) {
  for (const char* schedule : {"GPipe", "ZBH1"}) {
    on_ranks(2, [&](int rank) {
      const mt::PipelineTable table = mt::make_pipeline_table(schedule, {2, 2});
      const Tensor weight = (numbers({3, 3}, torch::kDouble, 1 + rank)).requires_grad_();
      const auto first = [](const Tensor& w, const std::vector<Tensor>& in) {
        const Tensor ids = in[0].gt(0).to(torch::kLong);
        return std::vector<Tensor>{in[0].mm(w), ids, in[0].mm(w) * 3, in[0] + 1};
      };
      const auto second = [](const Tensor& w, const std::vector<Tensor>& in) {
        return std::vector<Tensor>{in[0].mm(w).mul(in[1]) + in[3]};
      };
      const auto forward = [&](const std::vector<Tensor>& in) {
        return rank == 0 ? first(weight, in) : second(weight, in);
      };
      mt::Pipeline pipeline({mt::PipelineStage(forward, rank, 2, {})}, table, squared_error);
      const Tensor x = numbers({4, 3}, torch::kDouble, 7);
      const Tensor target = numbers({4, 3}, torch::kDouble, 8);
      pipeline.step({x}, target);
      const Tensor w0 = numbers({3, 3}, torch::kDouble, 1).requires_grad_();
      const Tensor w1 = numbers({3, 3}, torch::kDouble, 2).requires_grad_();
      squared_error(second(w1, first(w0, {x}))[0], target).backward();
      EXPECT_TRUE(is_close(weight.grad(), (rank == 0 ? w0 : w1).grad(), 1e-9));
    });
  }
}

TEST(Pipeline, DoesNotScaleALossThatIsASum) {
  on_ranks(2, [](int rank) {
    const mt::PipelineTable table = mt::make_pipeline_table("1F1B", {2, 3});
    torch::nn::Sequential plain = tanh_layers(2);
    const RankModel mine = model_of_rank(table, tanh_layers(2), plain, mt::Group());
    const auto loss = [](const Tensor& output, const Tensor& target) {
      return (output - target).square().sum() / 7;
    };
    mt::Pipeline pipeline(mine.stages, table, loss, {.loss_scale = mt::PipelineLossScale::none});
    const mt::PipelineResult result = pipeline.step({input_rows(4, 0)}, target_rows(2, 4, 0));
    const Tensor expected = loss(plain->forward(input_rows(4, 0)), target_rows(2, 4, 0));
    expected.backward();
    expect_close_lists(gradients_of(mine.parameters), gradients_of(mine.expected), "gradient");
    if (rank != 1) return;
    EXPECT_TRUE(is_close(result.loss, expected.detach(), 1e-9));
  });
}

TEST(Pipeline, KeepsNoOutputsIfItIsNotAsked) {
  on_ranks(2, [](int rank) {
    const mt::PipelineTable table = mt::make_pipeline_table("1F1B", {2, 2});
    const RankModel mine = model_of_rank(table, tanh_layers(2), tanh_layers(2), mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error, {.keeps_outputs = false});
    const mt::PipelineResult result = pipeline.step({input_rows(4, 0)}, target_rows(2, 4, 0));
    EXPECT_TRUE(result.outputs.empty());
    EXPECT_EQ(result.loss.defined(), rank == 1);
    EXPECT_EQ(pipeline.forward({input_rows(4, 0)}).size(), rank == 1 ? 1U : 0U);
  });
}

TEST(Pipeline, ForgetsShapesWhenItIsTold) {
  on_ranks(2, [](int) {
    const mt::PipelineTable table = mt::make_pipeline_table("1F1B", {2, 2});
    torch::nn::Sequential plain = tanh_layers(2);
    const RankModel mine = model_of_rank(table, tanh_layers(2), plain, mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    for (const int64_t rows : {4, 6, 5}) {
      pipeline.forget_shapes();
      pipeline.step({input_rows(rows, 0)}, target_rows(2, rows, 0));
      squared_error(plain->forward(input_rows(rows, 0)), target_rows(2, rows, 0)).backward();
    }
    expect_close_lists(gradients_of(mine.parameters), gradients_of(mine.expected), "gradient");
  });
}

// Another axis of the mesh inside each stage: what it is for, and which schedule.
struct InsideCase {
  std::string name;
  std::string schedule;
};

void PrintTo(const InsideCase& c, std::ostream* out) { *out << c.name << ", " << c.schedule; }

class PipelineWith : public ::testing::TestWithParam<InsideCase> {};
INSTANTIATE_TEST_SUITE_P(Axes, PipelineWith,
                         ::testing::Values(InsideCase{"tp", "1F1B"}, InsideCase{"tp", "ZBVZeroBubble"},
                                           InsideCase{"replicate", "1F1B"},
                                           InsideCase{"replicate", "ZBVZeroBubble"},
                                           InsideCase{"fully_shard", "GPipe"},
                                           InsideCase{"fully_shard", "1F1B"},
                                           InsideCase{"fully_shard", "ZBVZeroBubble"}),
                         [](const auto& info_) { return info_.param.name + "_" + info_.param.schedule; });

TEST_P(PipelineWith, TrainsAsOneDevice) {
  const InsideCase& param = GetParam();
  on_ranks(4, [&](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"pp", "inside"});
    const mt::DeviceMesh inside = mesh["inside"];
    const mt::PipelineTable table = mt::make_pipeline_table(param.schedule, {2, 4});
    const int stages = mt::prove(table).stages;
    std::vector<Mlp> plain;
    std::vector<Mlp> mine;
    std::vector<mt::PipelineStage> of_rank;
    std::vector<Tensor> parameters;
    for (int stage = 0; stage < stages; ++stage) {
      plain.push_back(filled(Mlp(6, 8)));
      mine.push_back(filled(Mlp(6, 8)));
      if (mt::prove(table).rank_of_stage[static_cast<std::size_t>(stage)] != mesh.get_local_rank("pp"))
        continue;
      if (param.name == "tp")
        mt::parallelize_module(*mine.back(), inside,
                               {{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}});
      if (param.name == "replicate") mt::replicate(*mine.back(), inside);
      if (param.name == "fully_shard") mt::fully_shard(*mine.back(), inside);
      of_rank.emplace_back(mine.back(), stage, stages, mesh["pp"]);
      for (const Tensor& parameter : mine.back()->parameters()) parameters.push_back(parameter);
    }
    mt::Pipeline pipeline(of_rank, table, squared_error);
    torch::optim::Adam adam(parameters, torch::optim::AdamOptions(0.01));
    std::vector<Tensor> plain_parameters;
    for (Mlp& mlp : plain) {
      for (const Tensor& parameter : mlp->parameters()) plain_parameters.push_back(parameter);
    }
    torch::optim::Adam plain_adam(plain_parameters, torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      const Tensor x = numbers({16, 6}, torch::kDouble, step) / 4;
      const Tensor target = numbers({16, 6}, torch::kDouble, 7 + step) / 4;
      const auto rows = [&](const Tensor& t) {
        return param.name == "tp" ? t : rows_of(t, 2, inside.get_local_rank());
      };
      adam.zero_grad();
      plain_adam.zero_grad();
      pipeline.step({rows(x)}, rows(target));
      Tensor output = x;
      for (Mlp& mlp : plain) output = mlp(output);
      squared_error(output, target).backward();
      for (const mt::PipelineStage& stage : of_rank) {
        const auto index = static_cast<std::size_t>(stage.index());
        expect_same_parameters(plain[index], mine[index], /*gradients=*/true, 1e-9);
      }
      adam.step();
      plain_adam.step();
    }
    for (const mt::PipelineStage& stage : of_rank) {
      const auto index = static_cast<std::size_t>(stage.index());
      expect_same_parameters(plain[index], mine[index], /*gradients=*/false, 1e-9);
    }
  });
}

TEST(PipelineErrors, NameTheStagesOfARank) {
  on_ranks(2, [](int rank) {
    const auto stage = [](int index, int count) {
      return mt::PipelineStage(tanh_layers(2), index, count, {});
    };
    const mt::PipelineTable table = mt::make_pipeline_table("1F1B", {2, 2});
    EXPECT_EQ(error_of([&] { mt::Pipeline({stage(1 - rank, 2)}, table); }),
              "meshtorch: rank " + std::to_string(rank) + " of the pipeline got the stages " +
                  std::to_string(1 - rank) + ", and has the stages " + std::to_string(rank) +
                  " in the table\n  do: give it the stages of the table");
    EXPECT_EQ(error_of([&] { mt::Pipeline({stage(rank, 3)}, table); }),
              "meshtorch: stage " + std::to_string(rank) +
                  " is one of 3, and the table has 2 stages\n  do: make the table for 3 stages");
    EXPECT_EQ(error_of([&] { mt::Pipeline({stage(rank, 2)}, mt::make_pipeline_table("1F1B", {3, 2})); }),
              "meshtorch: the table of the pipeline has 3 ranks, and its group has 2\n  do: make the table "
              "for 2 ranks");
    EXPECT_EQ(error_of([&] { mt::Pipeline({}, table); }),
              "meshtorch: a pipeline got no stage on this rank\n  do: give the stages that this rank has in "
              "the table");
    EXPECT_EQ(
        error_of([&] { stage(2, 2); }),
        "meshtorch: there is no stage 2 of 2 stages\n  in: PipelineStage\n  do: give a number from 0 to 1");
    EXPECT_EQ(error_of([&] { mt::Pipeline({stage(rank, 2)}, mt::PipelineTable::from_csv("0F0,0B0\n1F0")); }),
              "meshtorch: the pipeline table has no 1B0\n  in: row 1 (rank 1)\n  do: add 1B0");
  });
}

TEST(PipelineErrors, NameABatchOfTooFewRows) {
  on_ranks(1, [](int) {
    mt::Pipeline pipeline({mt::PipelineStage(tanh_layers(0), 0, 1, {})},
                          mt::make_pipeline_table("GPipe", {1, 4}), squared_error);
    EXPECT_EQ(error_of([&] { pipeline.step({input_rows(3, 0)}, target_rows(0, 4, 0)); }),
              "meshtorch: an input of a pipeline with 4 micro-batches is of shape [3, 5]\n  do: give a "
              "tensor of 4 rows or more along dim 0");
    EXPECT_EQ(error_of([&] { pipeline.step({input_rows(4, 0)}, {}); }),
              "meshtorch: the target of a pipeline with 4 micro-batches is undefined\n  do: give a tensor of "
              "4 rows or more along dim 0");
  });
}

TEST(PipelineErrors, NameAShapeThatChanged) {
  on_ranks(2, [](int rank) {
    const mt::PipelineTable table = mt::make_pipeline_table("GPipe", {2, 1});
    const RankModel mine = model_of_rank(table, tanh_layers(2), tanh_layers(2), mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    pipeline.step({input_rows(2, 0)}, target_rows(2, 2, 0));
    if (rank == 1) return;
    EXPECT_EQ(
        error_of([&] { pipeline.step({input_rows(3, 0)}, {}); }),
        "meshtorch: stage 0 passes on Double[3, 7], requires_grad for micro-batch 0, and passed on Double[2, "
        "7], requires_grad in the "
        "first step\n  do: give batches of one shape, or call forget_shapes() on all ranks of the pipeline");
  });
}

TEST(PipelineErrors, AStageThatFailsStopsTheOtherRanks) {
  if (ranks_are_processes()) GTEST_SKIP() << "the ranks are threads of its own";
  for (const int failing : {0, 1, 2}) {
    const auto train = [&](int rank) {
      const mt::PipelineTable table = mt::make_pipeline_table("ZBH1", {3, 6});
      int calls = 0;
      const auto forward = [&](const std::vector<Tensor>& in) {
        TORCH_CHECK(rank != failing || ++calls < 3, "the weather is bad");
        return std::vector<Tensor>{in[0] * 2};
      };
      mt::Pipeline pipeline({mt::PipelineStage(forward, rank, 3, {})}, table, squared_error);
      pipeline.step({numbers({6, 2}).requires_grad_()}, numbers({6, 2}));
    };
    try {
      mt::spawn(3, train);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const mt::RankError& error) {
      EXPECT_EQ(error.rank(), failing);
      EXPECT_NE(std::string(error.what()).find("the weather is bad"), std::string::npos) << error.what();
    }
  }
}

TEST(PipelineErrors, RanksWithDifferentTablesDisagree) {
  on_ranks(2, [](int rank) {
    const mt::PipelineTable table = mt::make_pipeline_table(rank == 0 ? "GPipe" : "1F1B", {2, 3});
    const RankModel mine = model_of_rank(table, tanh_layers(2), tanh_layers(2), mt::Group());
    mt::Pipeline pipeline(mine.stages, table, squared_error);
    const std::string error = error_of([&] { pipeline.step({input_rows(3, 0)}, target_rows(2, 3, 0)); });
    EXPECT_NE(error.find("disagree"), std::string::npos) << error;
    EXPECT_NE(error.find("do: "), std::string::npos) << error;
  });
}

TEST(PipelineSplit, KeepsNamesAndSharesChildren) {
  torch::nn::Sequential model = tanh_layers(2);  // linear0, tanh0, … tanh2
  const auto names = [](const std::vector<torch::nn::Sequential>& parts) {
    std::vector<std::vector<std::string>> all;
    for (const torch::nn::Sequential& part : parts) all.push_back(part->named_children().keys());
    return all;
  };
  using Names = std::vector<std::vector<std::string>>;
  const std::vector<torch::nn::Sequential> parts = mt::split(model, 4);
  EXPECT_EQ(names(parts), (Names{{"linear0", "tanh0"}, {"linear1", "tanh1"}, {"linear2"}, {"tanh2"}}));
  EXPECT_EQ(parts[1]->ptr(0).get(), model->ptr(2).get());
  EXPECT_EQ(names(mt::split(model, std::vector<std::string>{"linear1", "tanh1"})),
            (Names{{"linear0", "tanh0"}, {"linear1"}, {"tanh1", "linear2", "tanh2"}}));
  EXPECT_EQ(
      error_of([&] { mt::split(model, 7); }),
      "meshtorch: a Sequential of 6 children cannot be split into 7 stages\n  do: ask for 1 to 6 stages");
  EXPECT_EQ(error_of([&] { mt::split(model, std::vector<std::string>{"layer"}); }),
            "meshtorch: a Sequential cannot be split before child \"layer\": it has no such child\n  do: "
            "name some of its children but the "
            "first, in order");
  EXPECT_EQ(error_of([&] { mt::split(model, std::vector<std::string>{"tanh1", "linear1"}); }),
            "meshtorch: a Sequential cannot be split before child \"linear1\": the names are not in the "
            "order of its children\n  do: name "
            "some of its children but the first, in order");
}

}  // namespace
}  // namespace meshtorch::testing
