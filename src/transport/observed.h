// Collectives in memory do not pass LibTorch's dispatcher, whose observers (CommDebugMode, traces, profilers)
// are told of them all the same.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <vector>

namespace meshtorch::internal {

// Runs `body` as the c10d operator of that name on `inputs()`, made only if somebody looks.
template <class Inputs, class Body>
void observed(const char* name, const Inputs& inputs, const Body& body) {
  const at::NoGradGuard no_grad;
  at::RecordFunction record(at::RecordScope::FUNCTION);
  std::vector<c10::IValue> values;
  if (record.isActive()) {
    values = inputs();
    record.before(name, &values);
  }
  body();
}

}  // namespace meshtorch::internal
