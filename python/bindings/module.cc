// The Python module meshtorch._C: the library's functions on torch's Python tensors.
#include <torch/csrc/Exceptions.h>

#include "bindings/bindings.h"
#include "dispatch/foreign_error.h"
#include "meshtorch/error.h"
#include "meshtorch/version.h"
#include "runtime/blocking.h"

namespace meshtorch::python {
using namespace internal;
namespace {

// A rank that waits for another lets it run Python, also when torch called the library with the lock held.
void* release_lock() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void take_lock(void* thread) { PyEval_RestoreThread(static_cast<PyThreadState*>(thread)); }

// torch's meta functions in Python raise NotImplementedError, or an error of their own kind where the shapes
// depend on data; what else they raise is about the arguments.
bool says_unknown(const py::error_already_set& raised) {
  if (raised.matches(PyExc_NotImplementedError)) return true;
  const std::string kind = py::str(raised.type().attr("__name__"));
  if (std::string_view(raised.what()).find("no fake impl registered") != std::string_view::npos) return true;
  return kind == "DynamicOutputShapeException" || kind == "DataDependentOutputException" ||
         kind == "UnsupportedOperatorException";
}

// Shape functions assert where the operator itself raises a RuntimeError.
void raise_as_operator(const py::error_already_set& raised) {
  TORCH_CHECK(!raised.matches(PyExc_AssertionError), py::str(raised.value()).cast<std::string>());
}

bool tells_wrong_call(const std::exception& error, bool forgive) {
  const py::gil_scoped_acquire lock;
  if (const auto* raised = dynamic_cast<const py::error_already_set*>(&error)) {
    if (forgive || says_unknown(*raised)) return false;
    raise_as_operator(*raised);
    return true;
  }
  if (PyErr_Occurred() == nullptr) return false;
  py::error_already_set raised;  // takes it out of the thread's state, where torch leaves it
  if (forgive || says_unknown(raised)) return false;
  raise_as_operator(raised);
  raised.restore();
  return true;
}

// The errors of the library as torch translates its own: ValueError, IndexError, NotImplementedError, …
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const AssertionError& e) {
    PyErr_SetString(PyExc_AssertionError, e.what_without_backtrace());
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
  }
}

}  // namespace
}  // namespace meshtorch::python

PYBIND11_MODULE(_C, m) {
  namespace mt = meshtorch::python;
  m.doc() = "Distributed tensors: the C++ library under the names of torch.distributed.tensor.";
  m.attr("__version__") = MESHTORCH_VERSION;
  meshtorch::internal::set_blocking_hooks({&mt::release_lock, &mt::take_lock});
  meshtorch::internal::set_shape_error_reader(&mt::tells_wrong_call);
  py::register_local_exception_translator(&mt::translate);
  mt::bind_placements(m);
  mt::bind_worlds(m);
  mt::bind_meshes(m);
  mt::bind_tensors(m);
  mt::bind_factories(m);
  mt::bind_collectives(m);
  mt::bind_debug(m);
  mt::bind_report(m);
  mt::bind_local_map(m);
  mt::bind_parallel(m);
  mt::bind_sequences(m);
  mt::bind_sharding(m);
  mt::bind_data_parallel(m);
}
