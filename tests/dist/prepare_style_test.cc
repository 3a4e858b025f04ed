// The styles that only convert at a module's edge, on 4 ranks.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::ColwiseParallel;
using mt::DTensor;
using mt::PrepareModuleInput;
using mt::PrepareModuleOutput;
using mt::Replicate;
using mt::Shard;

constexpr int kWorldSize = 4;
using Sizes = std::vector<int64_t>;

TEST(PrepareModuleInput, GathersOneInput) {
  on_ranks(kWorldSize, [](int) {
    mt::nn::Identity model;
    mt::parallelize_module(
        *model, line(kWorldSize),
        PrepareModuleInput({.input_layouts = Shard(0), .desired_input_layouts = Replicate()}));
    EXPECT_TRUE(
        is_equal(DTensor(model(torch::ones({2, 16}))).full_tensor(), torch::ones({2 * kWorldSize, 16})));
  });
}

struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl() { register_module("linear", linear); }
  torch::Tensor forward(torch::Tensor x, torch::Tensor y) { return linear(x) + y; }
  mt::nn::Linear linear{8, 8};
};
MESHTORCH_MODULE(TwoInputs);

TEST(PrepareModuleInput, ChecksTheNumberOfLayouts) {
  on_ranks(kWorldSize, [](int) {
    const auto differ = [] {
      try {
        PrepareModuleInput({.input_layouts = Shard(0), .desired_input_layouts = {Replicate(), std::nullopt}});
      } catch (const mt::AssertionError& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    EXPECT_NE(differ().find("input_layouts and desired_input_layouts should have same length!"),
              std::string::npos);
    TwoInputs model;
    mt::parallelize_module(*model->linear, line(kWorldSize), ColwiseParallel());
    mt::parallelize_module(
        *model, line(kWorldSize),
        PrepareModuleInput({.input_layouts = Shard(0), .desired_input_layouts = Replicate()}));
    const std::string error =
        error_of([&] { model(numbers({2, 8}), torch::ones({kWorldSize * 2, 8 / kWorldSize})); });
    EXPECT_NE(error.find("module inputs and input_layouts should have same length!"), std::string::npos)
        << error;
    EXPECT_THROW(model(numbers({2, 8}), torch::ones({kWorldSize * 2, 8 / kWorldSize})), c10::ValueError);
  });
}

TEST(PrepareModuleInput, LeavesInputsWithoutLayoutAlone) {
  on_ranks(kWorldSize, [](int) {
    TwoInputs model;
    mt::parallelize_module(*model->linear, line(kWorldSize), ColwiseParallel());
    mt::parallelize_module(*model, line(kWorldSize),
                           PrepareModuleInput({.input_layouts = {Shard(0), std::nullopt},
                                               .desired_input_layouts = {Replicate(), std::nullopt}}));
    const torch::Tensor out = model(numbers({2, 8}), torch::ones({kWorldSize * 2, 8 / kWorldSize}));
    EXPECT_EQ(out.sizes(), (Sizes{kWorldSize * 2, 8 / kWorldSize}));
  });
}

struct NamedInputsImpl : torch::nn::Module {
  static std::array<const char*, 3> argument_names() { return {"x", "y", "z"}; }
  NamedInputsImpl() { register_module("linear", linear); }
  torch::Tensor forward(torch::Tensor x, torch::Tensor y, double z = 2) { return linear(x) + y + z; }
  mt::nn::Linear linear{8, 8};
};
MESHTORCH_MODULE(NamedInputs);

struct OptionalInputsImpl : torch::nn::Module {
  static std::array<const char*, 3> argument_names() { return {"x", "y", "z"}; }
  OptionalInputsImpl() { register_module("linear", linear); }
  torch::Tensor forward(torch::Tensor x, double y, std::optional<torch::Tensor> z) {
    const torch::Tensor out = linear(x) + y;
    return z ? out + *z : out;
  }
  mt::nn::Linear linear{8, 8};
};
MESHTORCH_MODULE(OptionalInputs);

TEST(PrepareModuleInput, AddressesInputsByName) {
  on_ranks(kWorldSize, [](int) {
    NamedInputs model;
    mt::parallelize_module(*model->linear, line(kWorldSize), ColwiseParallel({.use_local_output = false}));
    mt::parallelize_module(*model, line(kWorldSize),
                           PrepareModuleInput({.input_kwarg_layouts = {{"y", Shard(0)}},
                                               .desired_input_kwarg_layouts = {{"y", Replicate()}}}));
    mt::CommDebugMode comm;
    EXPECT_EQ(model(numbers({kWorldSize, 8}), torch::ones({1, 8})).sizes(), (Sizes{kWorldSize, 8}));
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();

    OptionalInputs optional;
    mt::parallelize_module(*optional->linear, line(kWorldSize), ColwiseParallel({.use_local_output = false}));
    mt::parallelize_module(
        *optional, line(kWorldSize),
        PrepareModuleInput({.input_kwarg_layouts = {{"x", Shard(0)}, {"z", Shard(0)}},
                            .desired_input_kwarg_layouts = {{"x", Replicate()}, {"z", Replicate()}}}));
    comm.restart();
    EXPECT_EQ(optional(numbers({1, 8}), 2.0, torch::ones({1, 8})).sizes(), (Sizes{kWorldSize, 8}));
    EXPECT_EQ(comm.get_total_counts(), 2) << comm.table();
    comm.restart();
    EXPECT_EQ(
        optional(DTensor::from_local(numbers({1, 8}), line(kWorldSize), {Shard(0)}), 2.0, torch::ones({1, 8}))
            .sizes(),
        (Sizes{kWorldSize, 8}));
    EXPECT_EQ(comm.get_total_counts(), 2) << comm.table();
    EXPECT_EQ(optional(numbers({1, 8}), 2.0, std::nullopt).sizes(), (Sizes{kWorldSize, 8}));

    const std::string error = error_of([&] {
      mt::parallelize_module(*optional, line(kWorldSize),
                             PrepareModuleInput({.input_kwarg_layouts = {{"w", Shard(0)}},
                                                 .desired_input_kwarg_layouts = {{"w", Shard(0)}}}));
    });
    EXPECT_NE(error.find("it declares: x, y, z"), std::string::npos) << error;
  });
}

TEST(PrepareModuleOutput, SplitsTheOutput) {
  on_ranks(kWorldSize, [](int) {
    mt::nn::Identity model;
    mt::parallelize_module(
        *model, line(kWorldSize),
        PrepareModuleOutput({.output_layouts = Replicate(), .desired_output_layouts = Shard(0)}));
    EXPECT_TRUE(is_equal(model(torch::ones({8, 16})), torch::ones({8 / kWorldSize, 16})));
  });
}

TEST(PrepareModuleInputOutput, ConvertsAtBothEdges) {
  on_ranks(kWorldSize, [](int rank) {
    mt::nn::Identity model;
    mt::parallelize_module(*model, line(kWorldSize),
                           mt::PrepareModuleInputOutput({.input_layouts = Shard(0),
                                                         .desired_input_layouts = Replicate(),
                                                         .output_layouts = Replicate(),
                                                         .desired_output_layouts = Shard(1)}));
    const torch::Tensor x = numbers({2 * kWorldSize, 8});
    EXPECT_TRUE(is_equal(model(x.chunk(kWorldSize, 0)[rank]), x.chunk(kWorldSize, 1)[rank]));
  });
}

}  // namespace
}  // namespace meshtorch::testing
