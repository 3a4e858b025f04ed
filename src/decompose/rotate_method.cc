// The way of keys and values that this rank chose.
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include <array>
#include <string>

#include "meshtorch/context_parallel.h"

namespace meshtorch {
using namespace internal;
namespace {

constexpr std::array<std::string_view, 4> kRotateMethods{"auto", "allgather", "ring", "ulysses"};

struct ChosenRotation {
  RotateMethod method = RotateMethod::automatic;
};

}  // namespace

std::string_view to_string(RotateMethod method) {
  return kRotateMethods.at(static_cast<std::size_t>(method));
}

RotateMethod parse_rotate_method(std::string_view name) {
  if (name == "alltoall") return RotateMethod::ring;
  for (std::size_t i = 0; i < kRotateMethods.size(); ++i) {
    if (kRotateMethods[i] == name) return static_cast<RotateMethod>(i);
  }
  TORCH_CHECK_VALUE(false, "meshtorch: unknown rotate method \"", std::string(name),
                    "\"\n  in: set_rotate_method\n  do: use auto, allgather, alltoall (the ring) or ulysses");
}

void set_rotate_method(RotateMethod method) { c10d::RankLocal<ChosenRotation>::get().method = method; }
void set_rotate_method(std::string_view name) { set_rotate_method(parse_rotate_method(name)); }
RotateMethod get_rotate_method() { return c10d::RankLocal<ChosenRotation>::get().method; }

}  // namespace meshtorch
