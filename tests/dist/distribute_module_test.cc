// distribute_module: parameters in place, functions at the edge.
#include <ATen/autocast_mode.h>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

// The model of PyTorch's tests: layers in a row.
struct MyModelImpl : torch::nn::Module {
  MyModelImpl(int64_t features, int64_t layers, const torch::Device& device = torch::kCPU) {
    for (int64_t i = 0; i < layers; ++i) {
      torch::nn::Linear layer(features, features);
      if (device.is_meta()) {
        for (const torch::Tensor& p : layer->parameters())
          mt::replace_data(p, torch::empty_like(p, p.options().device(device)));
      } else {
        const torch::NoGradGuard no_grad;
        layer->weight.copy_(numbers({features, features}) / 20);
        layer->bias.copy_(numbers({features}) / 20);
      }
      seq->push_back(layer);
    }
    register_module("seq", seq);
  }
  torch::Tensor forward(torch::Tensor x) { return seq->forward(x); }
  torch::nn::Sequential seq;
};
MESHTORCH_MODULE(MyModel);

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    register_module("up", up);
    register_module("down", down);
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& p : parameters()) p.copy_(numbers(p.sizes()) / 8);
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::relu(up(x))); }
  mt::nn::Linear up{6, 8};
  mt::nn::Linear down{8, 6};
};
TORCH_MODULE(TwoLayers);

TEST(DistributeModule, OnAnotherAxisAddsThatAxis) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    TwoLayers plain;
    TwoLayers model;
    mt::parallelize_module(*model, mesh["tp"],
                           {{"up", mt::ColwiseParallel({.use_local_output = false})},
                            {"down", mt::RowwiseParallel({.use_local_output = false})}});
    if (rank / 2 == 1) {  // replicas of another dp rank that differ are overwritten by the first
      const torch::NoGradGuard no_grad;
      for (const torch::Tensor& p : model->parameters()) p.mul_(3);
    }
    mt::distribute_module(*model, mesh["dp"]);
    const auto placements = [&](const char* name) {
      const DTensor p(model->named_parameters()[name].detach());
      EXPECT_TRUE(p.device_mesh() == mesh);
      EXPECT_TRUE(is_equal(p.full_tensor(), plain->named_parameters()[name].detach())) << name;
      return p.placements();
    };
    EXPECT_EQ(placements("up.weight"), (mt::Placements{Replicate(), Shard(0)}));
    EXPECT_EQ(placements("down.weight"), (mt::Placements{Replicate(), Shard(1)}));
    EXPECT_EQ(placements("down.bias"), (mt::Placements{Replicate(), Replicate()}));

    // Data parallel over dp: the gradients of the whole batch.
    const torch::Tensor batch = numbers({4, 6}, torch::kFloat, 3);
    plain(batch).square().sum().backward();
    model(mt::distribute_tensor(batch, mesh, {Shard(0), Replicate()})).square().sum().backward();
    mt::reduce_gradients(model->parameters());
    for (const auto& p : plain->named_parameters()) {
      const DTensor gradient(model->named_parameters()[p.key()].grad());
      EXPECT_TRUE(is_close(gradient.full_tensor(), p.value().grad(), 1e-4)) << p.key();
    }
  });
}

TEST(DistributeModule, OnAnUnrelatedMeshIsAnErrorOnEveryRankThatChangesNothing) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    MyModel model(6, 2);
    mt::distribute_module(*model->seq->ptr(1), mesh["tp"]);
    const mt::DeviceMesh other = mt::init_device_mesh(torch::kCPU, {4}, {"all"});
    const std::string error = error_of([&] { mt::distribute_module(*model, other); });
    EXPECT_NE(error.find("cannot be replicated over another"), std::string::npos) << error;
    EXPECT_NE(error.find("do: take both from one mesh with names"), std::string::npos) << error;
    EXPECT_FALSE(mt::is_dtensor(model->named_parameters()["seq.0.weight"]));
    mt::distribute_module(*model, mesh["dp"]);  // not called before, as far as the module knows
  });
}

TEST(DistributeModule, PartitionFnSplitsAndTheRestIsReplicated) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    const auto shard_all = [](const std::string&, torch::nn::Module& module, const mt::DeviceMesh& m) {
      for (const auto& p : module.named_parameters(false))
        mt::replace_data(p.value(), mt::distribute_tensor(p.value().detach(), m, {Shard(0)}));
    };
    MyModel split(12, 2);
    const torch::Tensor member = split->seq->ptr<torch::nn::LinearImpl>(0)->weight;
    mt::distribute_module(*split, mesh, shard_all);
    for (const torch::Tensor& p : split->parameters())
      EXPECT_EQ(DTensor(p).placements(), mt::Placements{Shard(0)});
    EXPECT_TRUE(mt::is_dtensor(member));
    EXPECT_TRUE(member.is_leaf());
    EXPECT_TRUE(member.requires_grad());

    MyModel whole(12, 2);
    mt::distribute_module(*whole, mesh);
    for (const torch::Tensor& p : whole->parameters())
      EXPECT_EQ(DTensor(p).placements(), mt::Placements{Replicate()});

    MyModel mixed(12, 2);
    mt::distribute_module(*mixed, mesh,
                          [&](const std::string& name, torch::nn::Module& module, const mt::DeviceMesh& m) {
                            if (name == "seq.0") shard_all(name, module, m);
                          });
    EXPECT_EQ(DTensor(mixed->parameters()[0]).placements(), mt::Placements{Shard(0)});
    EXPECT_EQ(DTensor(mixed->parameters()[2]).placements(), mt::Placements{Replicate()});

    torch::nn::BatchNorm1d buffers(4);
    buffers->weight.set_requires_grad(false);
    mt::distribute_module(*buffers, mesh);
    EXPECT_TRUE(mt::is_dtensor(buffers->running_mean));
    EXPECT_FALSE(buffers->weight.requires_grad());
  });
}

TEST(DistributeModule, InputFnAndOutputFnRunAtTheEdge) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    MyModel model(20, 1);
    mt::distribute_module(
        *model, mesh, {},
        [](torch::nn::Module&, mt::Values& inputs, const mt::DeviceMesh& m) {
          return DTensor::from_local(inputs[0], m, {Shard(0)});
        },
        [](torch::nn::Module&, mt::Values& outputs, const mt::DeviceMesh&) {
          EXPECT_TRUE(mt::is_dtensor(outputs[0]));
          return DTensor(outputs[0]).to_local();
        });
    const torch::Tensor out = model(numbers({5, 20}));
    EXPECT_FALSE(mt::is_dtensor(out));
    EXPECT_EQ(out.sizes(), (std::vector<int64_t>{5, 20}));

    MyModel replicated(10, 10);
    mt::distribute_module(*replicated, mesh, {},
                          [](torch::nn::Module&, mt::Values& inputs, const mt::DeviceMesh& m) {
                            inputs[0] = DTensor::from_local(inputs[0], m, {Replicate()});
                          });
    replicated(numbers({10, 10}).requires_grad_()).sum().backward();
    const torch::Tensor gradient = replicated->parameters()[0].grad();
    EXPECT_TRUE(mt::is_dtensor(gradient));
    EXPECT_EQ(DTensor(gradient).placements(), mt::Placements{Replicate()});
  });
}

struct WarningText : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

TEST(DistributeModule, FunctionsOfTwoArgumentsWarnAndWork) {
  on_ranks(4, [](int) {
    WarningText warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    MyModel model(20, 1);
    mt::distribute_module(
        *model, line(4), {},
        [](mt::Values& inputs, const mt::DeviceMesh& m) {
          return DTensor::from_local(inputs[0], m, {Shard(0)});
        },
        [](mt::Values& outputs, const mt::DeviceMesh&) { return DTensor(outputs[0]).to_local(); });
    EXPECT_NE(warnings.text.find("Deprecating input_fn"), std::string::npos);
    EXPECT_NE(warnings.text.find("Deprecating output_fn"), std::string::npos);
    EXPECT_FALSE(mt::is_dtensor(model(numbers({5, 20}))));
  });
}

TEST(DistributeModule, ASecondCallIsAnError) {
  on_ranks(2, [](int) {
    MyModel model(4, 1);
    mt::distribute_module(*model, line(2));
    EXPECT_NE(error_of([&] {
                mt::distribute_module(*model, line(2));
              }).find("distribute_module should only be called once on a module"),
              std::string::npos);
    torch::nn::Linear plain(4, 4);
    mt::distribute_module(*plain, line(2));
    EXPECT_NE(error_of([&] { mt::distribute_module(*plain, line(2)); }).find("already been called"),
              std::string::npos);
  });
}

TEST(DistributeModule, APlainModuleHasNoEdgeToConvertAt) {
  on_ranks(2, [](int) {
    torch::nn::Linear plain(4, 4);
    const std::string error = error_of([&] {
      mt::distribute_module(*plain, line(2), {},
                            [](torch::nn::Module&, mt::Values&, const mt::DeviceMesh&) {});
    });
    EXPECT_NE(error.find("torch::nn::LinearImpl"), std::string::npos) << error;
    EXPECT_NE(error.find("write meshtorch::nn::Linear for torch::nn::Linear"), std::string::npos) << error;
  });
}

TEST(DistributeModule, CastingAndAutocastReachTheShards) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    const DTensor from_local = DTensor::from_local(numbers({10}), mesh, {Replicate()}).to(torch::kBFloat16);
    EXPECT_EQ(from_local.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(from_local.to_local().scalar_type(), torch::kBFloat16);
    const DTensor distributed =
        mt::distribute_tensor(numbers({10}), mesh, {Replicate()}).to(torch::kBFloat16);
    EXPECT_EQ(distributed.to_local().scalar_type(), torch::kBFloat16);

    MyModel model(10, 10);
    mt::distribute_module(*model, mesh);
    model->to(torch::kBFloat16);
    const torch::Tensor weight = model->seq->ptr<torch::nn::LinearImpl>(0)->weight;
    EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(DTensor(weight).to_local().scalar_type(), torch::kBFloat16);

    MyModel cast(10, 10);
    mt::distribute_module(*cast, mesh);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    const torch::Tensor output = cast(mt::distribute_tensor(numbers({10}), mesh, {Replicate()}));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  });
}

TEST(DistributeModule, MetaModelsAreMadeShardByShard) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    MyModel model(20, 20, torch::kMeta);
    const torch::Tensor member = model->seq->ptr<torch::nn::LinearImpl>(0)->weight;
    EXPECT_TRUE(member.is_meta());
    mt::distribute_module(
        *model, mesh, [](const std::string&, torch::nn::Module& module, const mt::DeviceMesh& m) {
          for (const auto& p : module.named_parameters(false)) {
            const DTensor split = mt::distribute_tensor(p.value().detach(), m, {Shard(0)});
            mt::replace_data(p.value(), torch::empty_like(split, split.options().device(m.device_type())));
          }
        });
    for (const torch::Tensor& p : model->parameters()) {
      EXPECT_TRUE(mt::is_dtensor(p));
      EXPECT_FALSE(p.is_meta());
      EXPECT_TRUE(p.device().is_cpu());
      EXPECT_TRUE(p.requires_grad());
      EXPECT_EQ(DTensor(p).to_local().size(0), 5);
    }
    EXPECT_FALSE(member.is_meta());
  });
}

}  // namespace
}  // namespace meshtorch::testing
