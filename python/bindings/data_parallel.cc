// Groups of parameters from Python: the library gathers and reduces, Python has the hooks.
#include <ATen/core/Tensor.h>
#include <pybind11/functional.h>

#include "bindings/bindings.h"
#include "data_parallel/parameter_group.h"
#include "data_parallel/shard_options.h"
#include "meshtorch/process_group.h"

namespace meshtorch::python {
using namespace internal;
namespace {

using Tensors = std::vector<at::Tensor>;
using OptionalType = std::optional<at::ScalarType>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<at::Tensor*> pointers_to(Tensors& tensors) {
  std::vector<at::Tensor*> pointers;
  for (at::Tensor& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

MixedPrecisionPolicy policy(const OptionalType& param, const OptionalType& reduce, const OptionalType& output,
                            bool cast_inputs) {
  return {param, reduce, output, cast_inputs};
}

// 0: all ranks of the axis.
std::optional<ReshardAfterForward> reshard_after(const std::optional<int>& ranks) {
  if (!ranks) return std::nullopt;
  return *ranks == 0 ? ReshardAfterForward(true) : ReshardAfterForward(*ranks);
}

using Groups = std::vector<std::shared_ptr<ParameterGroup>>;
std::vector<std::weak_ptr<ParameterGroup>> weak(const Groups& groups) {
  return {groups.begin(), groups.end()};
}

std::shared_ptr<ParameterGroup> make_sharded(const std::string& name, const Named& parameters,
                                             const std::vector<std::optional<Placement>>& placements,
                                             const std::vector<OptionalType>& whole_types,
                                             const DeviceMesh& mesh, const std::optional<int>& ranks_after,
                                             const MixedPrecisionPolicy& precision) {
  std::vector<NamedParameter> members;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [key, tensor] = parameters[i];
    members.push_back({key, tensor, shard_dim(key, tensor, placements[i]), whole_types[i]});
  }
  return ParameterGroup::make(members, {.name = "fully_shard of " + name,
                                        .data = shard_mesh(mesh),
                                        .reshard_after_forward = reshard_after(ranks_after),
                                        .precision = precision});
}

std::shared_ptr<ParameterGroup> make_replicated(const std::string& name, const Named& parameters,
                                                const Tensors& buffers, const DeviceMesh& mesh,
                                                std::int64_t bucket_bytes, bool find_unused,
                                                const MixedPrecisionPolicy& precision) {
  std::vector<NamedParameter> members;
  for (const auto& [key, tensor] : parameters) members.push_back({key, tensor, std::nullopt});
  return replicated_group(
      name, members, buffers, mesh,
      {.bucket_bytes = bucket_bytes, .find_unused_parameters = find_unused, .mp_policy = precision});
}

}  // namespace

void bind_data_parallel(py::module_& m) {
  py::class_<MixedPrecisionPolicy>(m, "_Precision")
      .def(py::init(&policy), py::arg("param"), py::arg("reduce"), py::arg("output"), py::arg("cast_inputs"));
  py::class_<ParameterGroup, std::shared_ptr<ParameterGroup>>(m, "_ParameterGroup")
      .def_property_readonly("is_new", &ParameterGroup::is_new)
      .def_property_readonly("is_unsharded", &ParameterGroup::is_unsharded)
      .def("become_root_of", [](ParameterGroup& group, const Tensors& parameters,
                                Tensors inputs) { group.become_root_of(parameters, pointers_to(inputs)); })
      .def("replace", &ParameterGroup::replace, WithoutGil())
      .def(
          "before_forward",
          [](ParameterGroup& group, Tensors inputs) {
            group.before_forward(pointers_to(inputs));
            return inputs;
          },
          WithoutGil())
      .def(
          "after_forward",
          [](ParameterGroup& group, Tensors outputs, bool is_last) {
            group.after_forward(pointers_to(outputs), is_last);
            return outputs;
          },
          WithoutGil())
      .def(
          "unshard", [](ParameterGroup& group) { group.unshard(Form::local); }, WithoutGil())
      .def("reshard", &ParameterGroup::reshard, WithoutGil())
      .def("start_gather", &ParameterGroup::start_gather, WithoutGil())
      .def("reset_pass", &ParameterGroup::reset_pass, WithoutGil())
      .def_property("requires_gradient_sync", &ParameterGroup::requires_gradient_sync,
                    &ParameterGroup::set_requires_gradient_sync)
      .def("set_reshard_after_forward",
           [](ParameterGroup& group, int ranks) { group.set_reshard_after_forward(*reshard_after(ranks)); })
      .def("set_counts_unused", &ParameterGroup::set_counts_unused)
      .def("set_requires_all_reduce",
           [](ParameterGroup& group, bool value) { group.settings().syncs_copies = value; })
      .def("set_reshard_after_backward",
           [](ParameterGroup& group, bool value) { group.settings().reshards_after_backward = value; })
      .def("set_unshard_in_backward",
           [](ParameterGroup& group, bool value) { group.settings().unshards_in_backward = value; })
      .def("finalize_backward", &ParameterGroup::finalize_backward, WithoutGil())
      .def("set_ends_backward_by_hand",
           [](ParameterGroup& group, bool value) { group.settings().ends_backward_by_hand = value; })
      .def("set_gradient_divide_factor",
           [](ParameterGroup& group, double value) { group.settings().divisor = value; })
      .def("set_force_sum_reduction",
           [](ParameterGroup& group, bool value) { group.settings().sums_only = value; })
      .def("set_all_reduce_hook",
           [](ParameterGroup& group, std::function<void(const at::Tensor&)> hook) {
             group.settings().on_reduced = std::move(hook);
           })
      .def("set_forward_prefetch",
           [](ParameterGroup& group, const Groups& groups) {
             group.settings().forward_prefetch = weak(groups);
           })
      .def("set_backward_prefetch", [](ParameterGroup& group, const Groups& groups) {
        group.settings().backward_prefetch = weak(groups);
      });
  m.def("_sharded_group", &make_sharded, WithoutGil());
  m.def("_check_offload", &check_offload);
  m.def("_replicated_group", &make_replicated, WithoutGil());
  m.def("_world_mesh", [] {
    ensure_world();
    return init_device_mesh(c10::DeviceType::CPU, {get_world_size()});
  });
  m.def("_group_of", [](const at::Tensor& parameter) { return ParameterGroup::of(parameter); });
  m.def("_groups_of", [](const Tensors& parameters) { return ParameterGroup::of(parameters); });
}

}  // namespace meshtorch::python
