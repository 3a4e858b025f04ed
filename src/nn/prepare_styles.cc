// The styles that only convert at a module's edge: PrepareModuleInput, PrepareModuleOutput,
// PrepareModuleInputOutput.
#include "meshtorch/error.h"
#include "nn/edges.h"
#include "nn/hookable_module.h"
#include "nn/prepare.h"

namespace meshtorch {
using namespace internal;
namespace {

void convert(Values& values, std::size_t index, const DeviceMesh& mesh,
             const std::optional<Placement>& layout, const std::optional<Placement>& desired,
             bool use_local) {
  if (!layout) return;
  check_assertion(values.is_tensor(index), "meshtorch: expecting input to be a torch.Tensor!\n  value ",
                  index, " ", values.name(index), "\n  do: give nullopt as its layout");
  DTensor tensor = annotated(values[index], mesh, *layout);
  if (desired) tensor = moved_to(tensor, mesh, *desired);
  values[index] = shard_if(use_local, tensor);
}

// The positions of the values that no name in `named` addresses.
std::vector<std::size_t> positional(const Values& inputs, const NamedLayouts& named) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (named.count(std::string(inputs.name(i))) == 0) indices.push_back(i);
  }
  return indices;
}

void check_names(const Hookable& hooks, const NamedLayouts& layouts, const torch::nn::Module& module,
                 const StyleContext& context) {
  const std::vector<std::string_view> names = hooks.argument_names();
  for (const auto& [name, layout] : layouts) {
    TORCH_CHECK_VALUE(
        std::find(names.begin(), names.end(), name) != names.end(),
        "meshtorch: a layout is given for the argument `", name,
        "`, which the module does not declare\n  module: ", describe_module(module, context.module_name),
        "\n  it declares: ", names.empty() ? std::string("nothing") : c10::Join(", ", names),
        "\n  do: declare the names in order: static std::array<const char*, N> argument_names() { return "
        "{…}; }");
  }
}

}  // namespace

void internal::prepare_inputs(const PrepareInputOptions& options, const std::string& module, Values& inputs,
                              const DeviceMesh& mesh) {
  const std::vector<std::size_t> by_position = positional(inputs, options.input_kwarg_layouts);
  if (options.input_layouts.is_given()) {
    const std::size_t wanted = options.input_layouts.size();
    // With named layouts, arguments after the positional ones may be left to themselves, as Python's keyword
    // arguments are.
    const bool fits =
        options.input_kwarg_layouts.empty() ? by_position.size() == wanted : by_position.size() >= wanted;
    TORCH_CHECK_VALUE(fits, "meshtorch: module inputs and input_layouts should have same length!\n  inputs: ",
                      by_position.size(), "\n  input_layouts: ", wanted, "\n  module: ", module,
                      "\n  do: give nullopt for an input that is to stay as it is");
    for (std::size_t i = 0; i < wanted; ++i) {
      convert(inputs, by_position[i], mesh, options.input_layouts[i], options.desired_input_layouts[i],
              options.use_local_output);
    }
  }
  for (const auto& [name, layout] : options.input_kwarg_layouts) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs.name(i) != name || !inputs.is_tensor(i)) continue;
      const auto desired = options.desired_input_kwarg_layouts.find(name);
      convert(inputs, i, mesh, layout,
              desired != options.desired_input_kwarg_layouts.end() ? std::optional(desired->second)
                                                                   : std::nullopt,
              options.use_local_output);
    }
  }
}

void internal::prepare_outputs(const PrepareOutputOptions& options, const std::string& module,
                               Values& outputs, const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(
      outputs.size() == options.output_layouts.size(),
      "meshtorch: module outputs and output_layouts should have same length!\n  outputs: ", outputs.size(),
      "\n  output_layouts: ", options.output_layouts.size(), "\n  module: ", module);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    convert(outputs, i, mesh, options.output_layouts[i], options.desired_output_layouts[i],
            options.use_local_output);
  }
}

PrepareModuleInput::PrepareModuleInput(PrepareInputOptions options) : options_(std::move(options)) {
  if (options_.input_layouts.is_given()) {
    check_assertion(options_.desired_input_layouts.is_given(),
                    "meshtorch: desired module inputs should not be None!");
    check_assertion(
        options_.input_layouts.size() == options_.desired_input_layouts.size(),
        "meshtorch: input_layouts and desired_input_layouts should have same length!\n  input_layouts: ",
        options_.input_layouts.size(), "\n  desired_input_layouts: ", options_.desired_input_layouts.size());
  }
  if (!options_.input_kwarg_layouts.empty()) {
    check_assertion(options_.input_kwarg_layouts.size() == options_.desired_input_kwarg_layouts.size(),
                    "meshtorch: input_kwarg_layouts and desired_input_kwarg_layouts should have same "
                    "length!\n  input_kwarg_layouts: ",
                    options_.input_kwarg_layouts.size(),
                    "\n  desired_input_kwarg_layouts: ", options_.desired_input_kwarg_layouts.size());
  }
}

void PrepareModuleInput::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                               const StyleContext& context) const {
  Hookable& hooks = hooks_of(module, context.module_name, name());
  check_names(hooks, options_.input_kwarg_layouts, module, context);
  hooks.register_forward_pre_hook([options = options_, mesh](torch::nn::Module& m, Values& inputs) {
    prepare_inputs(options, class_of(m), inputs, mesh);
  });
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> PrepareModuleInput::attributes() const {
  return {{"input_layouts", options_.input_layouts},
          {"desired_input_layouts", options_.desired_input_layouts},
          {"input_kwarg_layouts", options_.input_kwarg_layouts},
          {"desired_input_kwarg_layouts", options_.desired_input_kwarg_layouts},
          {"use_local_output", options_.use_local_output}};
}

PrepareModuleOutput::PrepareModuleOutput(PrepareOutputOptions options) : options_(std::move(options)) {
  check_assertion(
      options_.output_layouts.size() == options_.desired_output_layouts.size(),
      "meshtorch: output_layouts and desired_output_layouts should have same length!\n  output_layouts: ",
      options_.output_layouts.size(), "\n  desired_output_layouts: ", options_.desired_output_layouts.size());
}

void PrepareModuleOutput::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                                const StyleContext& context) const {
  hooks_of(module, context.module_name, name())
      .register_forward_hook([options = options_, mesh](torch::nn::Module& m, Values& outputs) {
        prepare_outputs(options, class_of(m), outputs, mesh);
      });
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> PrepareModuleOutput::attributes() const {
  return {{"output_layouts", options_.output_layouts},
          {"desired_output_layouts", options_.desired_output_layouts},
          {"use_local_output", options_.use_local_output}};
}

PrepareModuleInputOutput::PrepareModuleInputOutput(const PrepareInputOutputOptions& options)
    : input_({.input_layouts = options.input_layouts,
              .desired_input_layouts = options.desired_input_layouts,
              .input_kwarg_layouts = options.input_kwarg_layouts,
              .desired_input_kwarg_layouts = options.desired_input_kwarg_layouts,
              .use_local_output = options.use_local_input}),
      output_({.output_layouts = options.output_layouts,
               .desired_output_layouts = options.desired_output_layouts,
               .use_local_output = options.use_local_output}) {}

void PrepareModuleInputOutput::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                                     const StyleContext& context) const {
  input_.apply(module, mesh, context);
  output_.apply(module, mesh, context);
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> PrepareModuleInputOutput::attributes() const {
  auto all = input_.attributes();
  all.back().first = "use_local_input";
  for (auto& attribute : output_.attributes()) all.push_back(std::move(attribute));
  return all;
}

}  // namespace meshtorch
