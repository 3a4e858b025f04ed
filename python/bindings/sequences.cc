// Long sequences and tensors between ranks and meshes, from Python.
#include <ATen/ATen.h>

#include "bindings/bindings.h"
#include "meshtorch/between_meshes.h"
#include "meshtorch/context_parallel.h"
#include "meshtorch/point_to_point.h"

namespace meshtorch::python {
namespace {

using Sends = std::vector<std::tuple<at::Tensor, int, int>>;  // tensor, peer, tag

// What is received is like the given tensors: in shape, type and whether it requires gradients.
SentAndReceived exchange(const Sends& sends, const Sends& receives, const Group& group) {
  std::vector<SendTo> to;
  std::vector<ReceiveFrom> from;
  for (const auto& [tensor, peer, tag] : sends) to.push_back({tensor, peer, tag});
  for (const auto& [like, peer, tag] : receives) {
    from.push_back({like.sizes().vec(), like.options().requires_grad(like.requires_grad()), peer, tag});
  }
  return batch_send_recv(to, from, group);
}

void bind_messages(py::module_& m) {
  m.def(
      "batch_send_recv",
      [](const Sends& sends, const Sends& receives, const py::object& group) {
        const Group ranks = to_group(group);
        const py::gil_scoped_release no_lock;
        SentAndReceived both = exchange(sends, receives, ranks);
        return std::pair(std::move(both.received), std::move(both.sent));
      },
      py::arg("sends"), py::arg("receives"), py::arg("group") = py::none());
}

// Open from its making to close().
class OpenContextParallel {
 public:
  OpenContextParallel(const DeviceMesh& mesh, const std::vector<at::Tensor>& buffers,
                      const std::vector<std::int64_t>& dims, bool load_balance,
                      const std::vector<at::Tensor>& no_restore)
      : scope_(std::in_place, mesh, buffers, dims, ContextParallelOptions{load_balance, no_restore}) {}
  void close() { scope_.reset(); }

 private:
  std::optional<context_parallel> scope_;
};

}  // namespace

void bind_sequences(py::module_& m) {
  bind_messages(m);
  m.def(
      "set_rotate_method", [](const std::string& name) { set_rotate_method(name); }, py::arg("rotate_method"),
      R"(Sets how keys and values travel in attention on split sequences: "auto", "allgather", "ring" (or "alltoall") or "ulysses".

>>> from meshtorch.experimental import set_rotate_method
>>> set_rotate_method("ring")
>>> set_rotate_method("auto")
)");
  m.def(
      "get_rotate_method", [] { return std::string(to_string(get_rotate_method())); },
      R"(Returns how keys and values travel, as set_rotate_method sets it.

>>> from meshtorch.context_parallel import get_rotate_method
>>> get_rotate_method()
'auto'
)");
  py::class_<OpenContextParallel>(m, "OpenContextParallel")
      .def(py::init<const DeviceMesh&, const std::vector<at::Tensor>&, const std::vector<std::int64_t>&, bool,
                    const std::vector<at::Tensor>&>(),
           WithoutGil())
      .def("close", &OpenContextParallel::close, WithoutGil());
  m.def("context_parallel_unshard", &context_parallel_unshard, py::arg("mesh"), py::arg("buffers"),
        py::arg("seq_dims"), py::arg("load_balance") = true, WithoutGil());
  m.def(
      "explain_redistribute",
      [](const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements) {
        return explain_redistribute(tensor, mesh, placements);
      },
      py::arg("tensor"), py::arg("device_mesh"), py::arg("placements"), WithoutGil(),
      "The steps, bytes and peak memory of a redistribution to another mesh, without running it.");
}

}  // namespace meshtorch::python
