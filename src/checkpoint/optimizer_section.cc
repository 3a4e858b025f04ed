// An optimizer in a checkpoint: the options of its groups as values, its state of each parameter as tensors
// and values under the parameter's name.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>

#include "checkpoint/module_tensors.h"
#include "checkpoint/optimizer_fields.h"
#include "checkpoint/section.h"

namespace meshtorch::checkpoint::internal {
namespace {

// A parameter of the optimizer and its name in the module.
struct Parameter {
  std::string name;
  at::Tensor tensor;
};

template <class Fields>
class OptimizerSection : public Section {
 public:
  using Options = typename Fields::Options;
  using ParamState = typename Fields::ParamState;

  OptimizerSection(const std::string& name, torch::optim::Optimizer& optimizer, torch::nn::Module& module)
      : Section(name), optimizer_(optimizer), module_(module) {}

  NamedTensors tensors() override {
    NamedTensors tensors;
    for_each_state([&](const Parameter& parameter, ParamState& state) {
      Fields::visit(state, [&](const char* field, auto& value) {
        if constexpr (std::is_same_v<decltype(value), at::Tensor&>) {
          if (value.defined()) tensors.emplace_back(tensor_name(parameter, field), value);
        }
      });
    });
    return tensors;
  }

  // {"type", "groups": [{"parameters": [names], option: value, …}], "state": {parameter: {field: value}}},
  // where the value of a tensor is null.
  Json values() override {
    Json groups = Json::array();
    for (std::size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
      Json group{{"parameters", names_of(i)}};
      Fields::visit(options_of(i), [&](const char* field, auto& value) { group[field] = value; });
      groups.push_back(std::move(group));
    }
    Json states = Json::object();
    for_each_state([&](const Parameter& parameter, ParamState& state) {
      Json& fields = states[parameter.name] = Json::object();
      Fields::visit(state, [&](const char* field, auto& value) {
        if constexpr (std::is_same_v<decltype(value), at::Tensor&>) {
          if (value.defined()) fields[field] = nullptr;
        } else {
          fields[field] = value;
        }
      });
    });
    return {{"type", Fields::kName}, {"groups", std::move(groups)}, {"state", std::move(states)}};
  }

  NamedTensors targets(const Json& values) override {
    check(values);
    loaded_.clear();
    NamedTensors tensors;
    for (const Parameter& parameter : parameters()) {
      if (!values.at("state").contains(parameter.name)) continue;
      const Json& fields = values.at("state").at(parameter.name);
      auto state = std::make_unique<ParamState>();
      Fields::visit(*state, [&](const char* field, auto& value) {
        if (!fields.contains(field)) return;
        if constexpr (std::is_same_v<decltype(value), at::Tensor&>) {
          const at::NoGradGuard no_grad;
          value = at::zeros_like(parameter.tensor);
          tensors.emplace_back(tensor_name(parameter, field), value);
        } else {
          fields.at(field).get_to(value);
        }
      });
      loaded_.emplace_back(parameter.tensor.unsafeGetTensorImpl(), std::move(state));
    }
    return tensors;
  }

  void accept(const Json& values) override {
    for (std::size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
      const Json& group = values.at("groups").at(i);
      Fields::visit(options_of(i), [&](const char* field, auto& value) { group.at(field).get_to(value); });
    }
    optimizer_.state().clear();
    for (auto& [parameter, state] : loaded_) optimizer_.state()[parameter] = std::move(state);
    loaded_.clear();
  }

 private:
  Options& options_of(std::size_t group) {
    return static_cast<Options&>(optimizer_.param_groups()[group].options());
  }

  std::string tensor_name(const Parameter& parameter, const char* field) const {
    return full_name(parameter.name + "." + field);
  }

  std::map<const c10::TensorImpl*, std::string> names_in_module() const {
    std::map<const c10::TensorImpl*, std::string> names;
    for (const ModuleTensor& tensor : tensors_of(module_))
      names[tensor.tensor.unsafeGetTensorImpl()] = tensor.names.front();
    return names;
  }

  // All parameters, group by group.
  std::vector<Parameter> parameters() const {
    const auto names = names_in_module();
    std::vector<Parameter> all;
    for (const auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto found = names.find(parameter.unsafeGetTensorImpl());
        TORCH_CHECK_VALUE(
            found != names.end(), "meshtorch: the optimizer has a parameter of shape ", parameter.sizes(),
            " that the module does not have\n  in: \"", name(),
            "\" of the state\n  do: add the optimizer together with the module whose parameters it "
            "was made with");
        all.push_back({found->second, parameter});
      }
    }
    return all;
  }

  std::vector<std::string> names_of(std::size_t group) const {
    const auto names = names_in_module();
    std::vector<std::string> of_group;
    for (const at::Tensor& parameter : optimizer_.param_groups()[group].params())
      of_group.push_back(names.at(parameter.unsafeGetTensorImpl()));
    return of_group;
  }

  template <class Visit>
  void for_each_state(const Visit& visit) {
    for (const Parameter& parameter : parameters()) {
      const auto found = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
      if (found != optimizer_.state().end()) visit(parameter, static_cast<ParamState&>(*found->second));
    }
  }

  void check(const Json& values) {
    const std::string type = values.value("type", "none");
    TORCH_CHECK_VALUE(type == Fields::kName, "meshtorch: the checkpoint has the state of ", type, ", not of ",
                      Fields::kName, "\n  in: \"", name(),
                      "\" of the state\n  do: load it into an optimizer of type ", type);
    parameters();  // checks that the module has them
    const auto& groups = optimizer_.param_groups();
    TORCH_CHECK_VALUE(values.at("groups").size() == groups.size(), "meshtorch: the optimizer has ",
                      groups.size(), " groups of parameters, and ", values.at("groups").size(),
                      " in the checkpoint\n  in: \"", name(),
                      "\" of the state\n  do: make it with the same groups");
    for (std::size_t i = 0; i < groups.size(); ++i) {
      TORCH_CHECK_VALUE(values.at("groups").at(i).at("parameters") == Json(names_of(i)), "meshtorch: group ",
                        i, " of the optimizer has the parameters ", Json(names_of(i)).dump(), ", and ",
                        values.at("groups").at(i).at("parameters").dump(), " in the checkpoint\n  in: \"",
                        name(), "\" of the state\n  do: make it with the same groups");
    }
  }

  torch::optim::Optimizer& optimizer_;
  torch::nn::Module& module_;
  // Between targets() and accept().
  std::vector<std::pair<void*, std::unique_ptr<ParamState>>> loaded_;
};

template <class Fields>
std::shared_ptr<Section> section_if_type_is(const std::string& name, torch::optim::Optimizer& optimizer,
                                            torch::nn::Module& module) {
  if (dynamic_cast<typename Fields::Options*>(&optimizer.defaults()) == nullptr) return nullptr;
  return std::make_shared<OptimizerSection<Fields>>(name, optimizer, module);
}

}  // namespace

std::shared_ptr<Section> optimizer_section(const std::string& name, torch::optim::Optimizer& optimizer,
                                           torch::nn::Module& module) {
  std::shared_ptr<Section> section;
  const auto found = [&](std::shared_ptr<Section> made) { return (section = std::move(made)) != nullptr; };
  const bool is_known = found(section_if_type_is<SgdFields>(name, optimizer, module)) ||
                        found(section_if_type_is<AdamFields>(name, optimizer, module)) ||
                        found(section_if_type_is<AdamWFields>(name, optimizer, module)) ||
                        found(section_if_type_is<RmspropFields>(name, optimizer, module)) ||
                        found(section_if_type_is<AdagradFields>(name, optimizer, module));
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_known, "meshtorch: checkpoints do not know the state of this optimizer\n  in: \"", name,
      "\" of the state\n  do: use SGD, Adam, AdamW, RMSprop or Adagrad, or add its "
      "tensors one by one");
  return section;
}

}  // namespace meshtorch::checkpoint::internal
