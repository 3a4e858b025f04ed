// The key under which a decision about a call is kept: built by the handler, and by what goes past it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "operator/decision.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

// A tensor with its place among the arguments. `meta` is null for a plain one.
void append_tensor(CallKey& key, const at::Tensor& tensor, const DTensorMeta* meta, std::size_t argument,
                   int element);
// A number, list or flag on which shapes and splits may depend.
void append_argument(CallKey& key, const c10::IValue& value);
// The same for values that are not boxed.
void append_integers(CallKey& key, c10::IntArrayRef numbers);
inline void append_integer(CallKey& key, std::int64_t number) {
  key.push_back(1);
  key.push_back(number);
}
inline void append_flag(CallKey& key, bool flag) { key.push_back(flag ? 2 : 3); }
inline void append_none(CallKey& key) { key.push_back(4); }

}  // namespace meshtorch::internal
