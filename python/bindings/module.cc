// The Python module meshtorch._C: the library's functions on torch's Python tensors.
#include <torch/csrc/Exceptions.h>

#include "bindings/bindings.h"
#include "comm/blocking.h"
#include "meshtorch/error.h"
#include "meshtorch/version.h"

namespace meshtorch::python {
namespace {

// A rank that waits for another lets it run Python, also when torch called the library with the lock held.
void* release_lock() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void take_lock(void* thread) { PyEval_RestoreThread(static_cast<PyThreadState*>(thread)); }

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
  meshtorch::set_blocking_hooks({&mt::release_lock, &mt::take_lock});
  py::register_local_exception_translator(&mt::translate);
  mt::bind_placements(m);
  mt::bind_worlds(m);
  mt::bind_meshes(m);
  mt::bind_tensors(m);
  mt::bind_factories(m);
  mt::bind_collectives(m);
  mt::bind_debug(m);
  mt::bind_local_map(m);
  mt::bind_parallel(m);
}
