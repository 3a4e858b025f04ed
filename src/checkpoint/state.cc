// What is saved and loaded: modules, tensors, values and the random state as sections.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "checkpoint/module_tensors.h"
#include "checkpoint/section.h"
#include "meshtorch/checkpoint.h"
#include "meshtorch/random.h"

namespace meshtorch::checkpoint {
using namespace internal;
namespace {

class ModuleSection : public Section {
 public:
  ModuleSection(const std::string& name, torch::nn::Module& module) : Section(name), module_(module) {}

  NamedTensors tensors() override {
    NamedTensors tensors;
    for (const ModuleTensor& tensor : tensors_of(module_))
      tensors.emplace_back(full_name(tensor.names.front()), tensor.tensor);
    return tensors;
  }

 private:
  torch::nn::Module& module_;
};

class TensorSection : public Section {
 public:
  TensorSection(const std::string& name, at::Tensor tensor) : Section(name), tensor_(std::move(tensor)) {}
  NamedTensors tensors() override { return {{name(), tensor_}}; }

 private:
  at::Tensor tensor_;
};

// JSON has no numbers that are not finite.
Json to_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
template <class T>
Json to_json(const T& value) {
  return value;
}

void read(const Json& json, double& value) {
  if (json == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (json == "inf" || json == "-inf") {
    value =
        json == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  } else {
    value = json.get<double>();
  }
}
template <class T>
void read(const Json& json, T& value) {
  value = json.get<T>();
}

template <class T>
class ValueSection : public Section {
 public:
  ValueSection(const std::string& name, T& value) : Section(name), value_(value) {}

  NamedTensors tensors() override { return {}; }
  Json values() override { return to_json(value_); }
  NamedTensors targets(const Json& values) override {
    const Json here = to_json(value_);
    const bool fits = std::is_same_v<T, double> ? values.is_number() || values.is_string()
                      : here.is_number()        ? values.is_number_integer()
                                                : values.type() == here.type();
    TORCH_CHECK_VALUE(fits, "meshtorch: the value \"", name(), "\" is ", values.dump(),
                      " in the checkpoint, and of another type here, ", here.dump(),
                      "\n  in: loading it\n  do: load it into a value of its type");
    return {};
  }
  void accept(const Json& values) override { read(values, value_); }

 private:
  T& value_;
};

class RandomSection : public Section {
 public:
  RandomSection() : Section("random") {}

  NamedTensors tensors() override { return {}; }
  Json values() override {
    const RngState state = get_rng_state();
    return {{"seed", state.seed}, {"call", state.call}};
  }
  void accept(const Json& values) override {
    set_rng_state(
        {.seed = values.at("seed").get<std::uint64_t>(), .call = values.at("call").get<std::uint64_t>()});
  }
};

}  // namespace

State& State::add(std::shared_ptr<Section> section) {
  const std::string& name = section->name();
  TORCH_CHECK_VALUE(!name.empty() && name.find('.') == std::string::npos,
                    "meshtorch: a part of a state cannot be "
                    "named \"",
                    name, "\"\n  in: State::add\n  do: use a name without dots");
  for (const auto& other : sections_) {
    TORCH_CHECK_VALUE(other->name() != name, "meshtorch: the state has two parts named \"", name,
                      "\"\n  in: State::add\n  do: give each a name of its own");
  }
  sections_.push_back(std::move(section));
  return *this;
}

State& State::add(const std::string& name, torch::nn::Module& module) {
  return add(std::make_shared<ModuleSection>(name, module));
}
State& State::add(const std::string& name, torch::optim::Optimizer& optimizer, torch::nn::Module& module) {
  return add(optimizer_section(name, optimizer, module));
}
State& State::add(const std::string& name, const at::Tensor& tensor) {
  return add(std::make_shared<TensorSection>(name, tensor));
}
State& State::add(const std::string& name, std::int64_t& value) {
  return add(std::make_shared<ValueSection<std::int64_t>>(name, value));
}
State& State::add(const std::string& name, double& value) {
  return add(std::make_shared<ValueSection<double>>(name, value));
}
State& State::add(const std::string& name, bool& value) {
  return add(std::make_shared<ValueSection<bool>>(name, value));
}
State& State::add(const std::string& name, std::string& value) {
  return add(std::make_shared<ValueSection<std::string>>(name, value));
}
State& State::add_random() { return add(std::make_shared<RandomSection>()); }

}  // namespace meshtorch::checkpoint
