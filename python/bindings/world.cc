// The world of ranks from Python: that of torch.distributed, one of its own, or threads.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <numeric>

#include "agreement/shm_membership.h"
#include "backends/backend.h"
#include "bindings/bindings.h"
#include "meshtorch/launch.h"
#include "meshtorch/process_group.h"
#include "runtime/timeout.h"
#include "signature/agreement_level.h"
#include "signature/call_place.h"
#include "world/agree.h"
#include "world/rank_context.h"
#include "world/rank_generator.h"
#include "world/watched_spawn.h"

namespace meshtorch::python {
using namespace internal;
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

py::module_ world_module() { return py::module_::import("meshtorch._world"); }

// A reference of our own to a group that a Python object holds.
ProcessGroupPtr shared(const py::handle& group) {
  return ProcessGroupPtr::reclaim_copy(group.cast<c10d::ProcessGroup*>());
}

// Asks torch.distributed for the group; holds no Python object, since the last owner may not have the lock.
ProcessGroupPtr make_torch_group(const std::vector<std::int64_t>& ranks) {
  const py::gil_scoped_acquire lock;
  return shared(world_module().attr("make_group")(ranks));
}

void adopt_world(const std::string& backend, int rank, int size, int local_rank) {
  World world;
  world.backend = backend;
  world.rank = rank;
  world.size = size;
  world.local_rank = local_rank;
  world.make_group = &make_torch_group;
  world.agreement = agreement_level(std::nullopt);
  set_process_rank(std::make_shared<RankContext>(std::move(world)));
}

// Python made its object for the default generator before there were ranks; it is to stand for theirs.
void share_python_generator() {
  share_default_generator();
  const py::object object = py::module_::import("torch").attr("default_generator");
  reinterpret_cast<THPGenerator*>(object.ptr())->cdata = at::detail::getDefaultCPUGenerator();
}

// Where in the Python program the calling thread is, for ranks that compare in full.
std::string place_in_python() {
  const py::gil_scoped_acquire lock;
  return world_module().attr("place_of_call")(kPlaceDepth).cast<std::string>();
}

std::optional<Agreement> level_of(const std::optional<std::string>& name, const char* where) {
  return name ? std::optional(agreement_named(*name, where)) : std::nullopt;
}

// Signals reach Python on its main thread, which waits for the ranks: what their handlers raise there, as
// Ctrl-C does, ends the ranks too.
class Signals {
 public:
  // On the thread of a rank, with Python's lock held.
  void add_rank() { ranks_.push_back(PyThread_get_thread_ident()); }

  void check() {
    const py::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return;
    raised_ = std::make_exception_ptr(py::error_already_set());
    for (const unsigned long rank : ranks_) PyThreadState_SetAsyncExc(rank, PyExc_KeyboardInterrupt);
  }

  std::exception_ptr raised() const { return raised_; }

 private:
  std::vector<unsigned long> ranks_;
  std::exception_ptr raised_;
};

// An error of Python that a rank raised reaches the caller as it was.
void spawn_ranks(int world_size, const py::function& fn, double timeout, int intra_op_threads,
                 const std::optional<std::string>& agreement) {
  const SpawnOptions options{timeout_of(timeout, "spawn"), intra_op_threads, level_of(agreement, "spawn")};
  std::exception_ptr cause;
  Signals signals;
  {
    const py::gil_scoped_release no_lock;
    try {
      spawn_watched(
          world_size,
          [&](int rank) {
            const py::gil_scoped_acquire lock;
            signals.add_rank();
            fn(rank);
          },
          options, [&] { signals.check(); });
    } catch (const RankError& error) {
      cause = error.cause();
    }
  }
  if (signals.raised()) std::rethrow_exception(signals.raised());
  if (cause) std::rethrow_exception(cause);
}

// The mesh along a group of torch.distributed, which has these ranks of the world.
DeviceMesh mesh_of_group(const py::object& group, const std::vector<std::int64_t>& ranks,
                         const std::string& device_type, const std::optional<DeviceMesh::Names>& names) {
  auto impl = std::make_shared<GroupImpl>();
  impl->process_group = shared(group);
  impl->rank = impl->process_group->getRank();
  impl->ranks = ranks;
  return DeviceMesh::from_group(Group(std::shared_ptr<const GroupImpl>(std::move(impl))),
                                c10::Device(device_type).type(), names.value_or(DeviceMesh::Names()));
}

// What torch.distributed calls for the backend "shm": `ranks` are the world ranks of the members, none for
// all.
c10::intrusive_ptr<c10d::Backend> make_shm_for_torch(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                     std::vector<std::int64_t> ranks, int size,
                                                     double timeout) {
  const py::gil_scoped_release no_lock;
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  TORCH_CHECK_VALUE(
      ranks_share_host(store, rank, size),
      "meshtorch: backend shm needs all ranks on one host, as one user in one container, and they are "
      "not\n  do: use gloo");
  return make_shm_backend(*store, ranks, rank, size, timeout_of(timeout, "init_process_group"));
}

std::string describe_group(const Group& group) {
  return c10::str("Group(rank=", group.rank(), ", ranks=", c10::IntArrayRef(group.ranks()), ")");
}

Group group_of_mesh_axis(const py::tuple& pair) {
  const auto mesh = pair[0].cast<DeviceMesh>();
  const auto axis = pair[1].cast<Axis>();
  const py::gil_scoped_release no_lock;
  return mesh.get_group(axis_number(mesh, axis));
}

}  // namespace

void ensure_world() {
  const auto context = current_rank_or_null();
  if (context && context->world().threads) return;
  world_module().attr("ensure")();
}

bool is_world_of_torch() {
  const auto context = current_rank_or_null();
  return context && context->world().make_group;
}

py::object to_python(const Group& group) {
  if (group.rank() < 0 || !is_world_of_torch()) return py::cast(group);
  return py::cast(group.process_group().get(), py::return_value_policy::reference);
}

Group to_group(const py::handle& group) {
  if (py::isinstance<Group>(group)) return group.cast<Group>();
  ensure_world();
  if (group.is_none()) return Group();
  if (py::isinstance<c10d::ProcessGroup>(group)) return Group(shared(group));
  if (py::isinstance<py::str>(group)) return Group(c10d::resolve_process_group(group.cast<std::string>()));
  if (py::isinstance<DeviceMesh>(group)) {
    const auto mesh = group.cast<DeviceMesh>();
    const py::gil_scoped_release no_lock;
    return Group(mesh);
  }
  if (py::isinstance<py::tuple>(group) && py::len(group) == 2 &&
      py::isinstance<DeviceMesh>(py::reinterpret_borrow<py::tuple>(group)[0])) {
    return group_of_mesh_axis(py::reinterpret_borrow<py::tuple>(group));
  }
  try {
    const auto ranks = group.cast<std::vector<std::int64_t>>();
    const py::gil_scoped_release no_lock;
    return Group(ranks);
  } catch (const py::cast_error&) {
    throw py::type_error(
        "meshtorch: " + std::string(py::repr(group)) +
        " is no group of ranks\n  do: give a ProcessGroup or its name, a mesh of one axis, (mesh, "
        "axis), or a list of ranks");
  }
}

void bind_worlds(py::module_& m) {
  set_place_in_program(&place_in_python);
  share_python_generator();
  py::class_<Group>(m, "Group", R"(A group of ranks that meshtorch made.

>>> mesh.get_group().ranks, mesh.get_group().size()
([0, 1], 2)
)")
      .def("rank", &Group::rank)
      .def("size", &Group::size)
      .def_property_readonly("ranks", &Group::ranks)
      .def(
          "__eq__", [](const Group& a, const Group& b) { return a == b; }, py::is_operator())
      .def("__repr__", &describe_group);
  m.def("adopt_world", &adopt_world, py::arg("backend"), py::arg("rank"), py::arg("size"),
        py::arg("local_rank"), WithoutGil());
  m.def("leave_adopted_world", [] {
    if (!is_world_of_torch()) return;
    const py::gil_scoped_release no_lock;
    set_process_rank(nullptr);
  });
  m.def("leave_adopted_groups", &leave_adopted_groups, WithoutGil());
  m.def("make_shm_backend", &make_shm_for_torch, py::arg("store"), py::arg("rank"), py::arg("ranks"),
        py::arg("size"), py::arg("timeout"));
  m.def("is_world_of_torch", &is_world_of_torch);
  m.def("set_group_of_axis",
        [](const std::string& name, const std::vector<std::int64_t>& ranks, const py::handle& group) {
          current_rank_or_null()->set_group_of_axis(name, ranks, shared(group));
        });
  m.def("mesh_of_group", &mesh_of_group, py::arg("group"), py::arg("ranks"), py::arg("device_type"),
        py::arg("mesh_dim_names") = py::none());
  m.def(
      "init_process_group",
      [](const std::string& backend, const std::string& init_method, int rank, int world_size, double timeout,
         const std::optional<std::string>& agreement) {
        const InitOptions options{backend,
                                  init_method,
                                  rank,
                                  world_size,
                                  timeout_of(timeout, "init_process_group"),
                                  level_of(agreement, "init_process_group")};
        if (backend == "threads" || init_method.starts_with("threads://")) share_python_generator();
        const py::gil_scoped_release no_lock;
        init_process_group(options);
      },
      py::arg("backend") = "", py::arg("init_method") = "env://", py::arg("rank") = -1,
      py::arg("world_size") = -1, py::arg("timeout") = 600.0, py::arg("agreement") = py::none(),
      R"(Joins a world of ranks: by default the one that a launcher describes in the environment (docs/launching.md).

Not needed in spawn, nor where torch.distributed.init_process_group was called. timeout is the limit of a collective
in seconds, agreement how much ranks compare: "off", "calls", "on" or "full".

>>> import threading
>>> def join(rank):
...     meshtorch.init_process_group(init_method="threads://docs", rank=rank, world_size=2)
...     meshtorch.destroy_process_group()
>>> if rank == 0:
...     threads = [threading.Thread(target=join, args=(r,)) for r in range(2)]
...     _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
)");
  m.def(
      "destroy_process_group", &destroy_process_group, WithoutGil(),
      R"(Leaves the world that init_process_group joined. Tensors of it can be read, but not communicate any more.

See init_process_group for an example.
)");
  m.def("is_initialized", &is_initialized);
  m.def("get_rank", &get_rank);
  m.def("get_world_size", &get_world_size);
  m.def("get_local_rank", &get_local_rank);
  m.def("get_backend", &get_backend);
  m.def("spawn", &spawn_ranks, py::arg("world_size"), py::arg("fn"), py::kw_only(),
        py::arg("timeout") = 600.0, py::arg("intra_op_threads") = 0, py::arg("agreement") = py::none(),
        R"(Runs fn(0) … fn(world_size - 1), each in a thread that is a rank, and returns when all have.

What a rank raises is raised here; the other ranks stop at their next collective.

>>> ranks = []
>>> meshtorch.spawn(2, ranks.append)
>>> sorted(ranks)
[0, 1]
)");
}

}  // namespace meshtorch::python
