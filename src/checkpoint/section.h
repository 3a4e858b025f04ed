// One named part of a state: the tensors and values that it stores, and how they come back.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/plan/index.h"
#include "meshtorch/checkpoint.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace meshtorch::checkpoint::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Section {
 public:
  explicit Section(std::string name) : name_(std::move(name)) {}
  virtual ~Section() = default;
  const std::string& name() const { return name_; }

  // What is stored. Names begin with that of the section.
  virtual NamedTensors tensors() = 0;
  virtual Json values() { return nullptr; }

  // The tensors to be filled from a checkpoint with these values. Throws ValueError if they do not fit what
  // is here, and changes nothing.
  virtual NamedTensors targets(const Json& /*values*/) { return tensors(); }
  // Called when the targets are filled.
  virtual void accept(const Json& /*values*/) {}

 protected:
  std::string full_name(const std::string& inner) const { return name_ + "." + inner; }

 private:
  std::string name_;
};

// What a State holds.
struct StateAccess {
  static const std::vector<std::shared_ptr<Section>>& sections(const State& state) { return state.sections_; }
};

std::shared_ptr<Section> optimizer_section(const std::string& name, torch::optim::Optimizer& optimizer,
                                           torch::nn::Module& module);

}  // namespace meshtorch::checkpoint::internal
