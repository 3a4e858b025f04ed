// Operators with inputs to try them on: the one table behind the operator tests.
#pragma once

#include "numbers.h"

namespace meshtorch::testing {

using TensorFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

struct Sample {
  std::string name;
  std::vector<torch::Tensor> inputs;  // floating ones are differentiated
  TensorFunction run;
};

struct Run {
  std::vector<torch::Tensor> results;
  std::vector<torch::Tensor> gradients;
};

// Runs the sample and differentiates a fixed weighting of its results.
Run run_sample(const Sample& sample, std::vector<torch::Tensor> inputs,
               const std::function<torch::Tensor(const torch::Tensor&)>& as_weight);

// One family a function, each in its own part of samples.cc.
std::vector<Sample> pointwise_samples();
std::vector<Sample> matmul_samples();
std::vector<Sample> reduction_samples();
std::vector<Sample> view_samples();
std::vector<Sample> index_samples();
std::vector<Sample> network_samples();

std::vector<Sample> all_samples();

}  // namespace meshtorch::testing
