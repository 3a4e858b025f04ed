// The fields of LibTorch's optimizers, by name: one list for each, read when saving and written when loading.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace meshtorch::checkpoint::internal {

struct SgdFields {
  static constexpr const char* kName = "SGD";
  using Options = torch::optim::SGDOptions;
  using ParamState = torch::optim::SGDParamState;
  static void visit(Options& o, const auto& field) {
    field("lr", o.lr());
    field("momentum", o.momentum());
    field("dampening", o.dampening());
    field("weight_decay", o.weight_decay());
    field("nesterov", o.nesterov());
  }
  static void visit(ParamState& s, const auto& field) { field("momentum_buffer", s.momentum_buffer()); }
};

// Adam and AdamW differ in their types only.
template <class OptionsType, class ParamStateType>
struct AdamLikeFields {
  using Options = OptionsType;
  using ParamState = ParamStateType;
  static void visit(Options& o, const auto& field) {
    field("lr", o.lr());
    field("beta1", std::get<0>(o.betas()));
    field("beta2", std::get<1>(o.betas()));
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("amsgrad", o.amsgrad());
  }
  static void visit(ParamState& s, const auto& field) {
    field("step", s.step());
    field("exp_avg", s.exp_avg());
    field("exp_avg_sq", s.exp_avg_sq());
    field("max_exp_avg_sq", s.max_exp_avg_sq());
  }
};
struct AdamFields : AdamLikeFields<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
};
struct AdamWFields : AdamLikeFields<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
};

struct RmspropFields {
  static constexpr const char* kName = "RMSprop";
  using Options = torch::optim::RMSpropOptions;
  using ParamState = torch::optim::RMSpropParamState;
  static void visit(Options& o, const auto& field) {
    field("lr", o.lr());
    field("alpha", o.alpha());
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("momentum", o.momentum());
    field("centered", o.centered());
  }
  static void visit(ParamState& s, const auto& field) {
    field("step", s.step());
    field("square_avg", s.square_avg());
    field("momentum_buffer", s.momentum_buffer());
    field("grad_avg", s.grad_avg());
  }
};

struct AdagradFields {
  static constexpr const char* kName = "Adagrad";
  using Options = torch::optim::AdagradOptions;
  using ParamState = torch::optim::AdagradParamState;
  static void visit(Options& o, const auto& field) {
    field("lr", o.lr());
    field("lr_decay", o.lr_decay());
    field("weight_decay", o.weight_decay());
    field("initial_accumulator_value", o.initial_accumulator_value());
    field("eps", o.eps());
  }
  static void visit(ParamState& s, const auto& field) {
    field("step", s.step());
    field("sum", s.sum());
  }
};

}  // namespace meshtorch::checkpoint::internal
