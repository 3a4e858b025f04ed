// A call as numbers.
#include "operator/call_key.h"

#include "operator/known_number.h"

namespace meshtorch::internal {
namespace {

std::int64_t mark_of_integers(std::size_t count) { return 5 + static_cast<std::int64_t>(count) * 16; }

}  // namespace

void append_tensor(CallKey& key, const at::Tensor& tensor, const DTensorMeta* meta, std::size_t argument,
                   int element) {
  key.push_back(reinterpret_cast<std::int64_t>(meta != nullptr ? meta->layout : nullptr));
  key.push_back(
      (static_cast<std::int64_t>(element) << 48) | (static_cast<std::int64_t>(known_number(tensor)) << 44) |
      (static_cast<std::int64_t>(argument) << 32) | (static_cast<std::int64_t>(tensor.scalar_type()) << 16) |
      (tensor.dim() << 8) | static_cast<std::int64_t>(tensor.device().type()));
  for (const std::int64_t size : tensor.sizes()) key.push_back(size);
  for (const std::int64_t stride : tensor.strides()) key.push_back(stride);
}

void append_argument(CallKey& key, const c10::IValue& value) {
  if (value.isInt()) {
    append_integer(key, value.toInt());
  } else if (value.isBool()) {
    append_flag(key, value.toBool());
  } else if (value.isNone()) {
    append_none(key);
  } else if (value.isIntList()) {
    const auto numbers = value.toListRef();
    key.push_back(mark_of_integers(numbers.size()));
    for (const c10::IValue& number : numbers) key.push_back(number.toInt());
  } else if (value.isList()) {
    const auto items = value.toListRef();
    key.push_back(6 + static_cast<std::int64_t>(items.size()) * 16);
    for (const c10::IValue& item : items) append_argument(key, item);
  } else if (value.isString()) {
    key.push_back(static_cast<std::int64_t>(std::hash<std::string_view>()(value.toStringView())));
  } else {
    TORCH_INTERNAL_ASSERT(false, "an argument of type ", value.tagKind(),
                          " cannot stand in the key of a call");
  }
}

void append_integers(CallKey& key, c10::IntArrayRef numbers) {
  key.push_back(mark_of_integers(numbers.size()));
  for (const std::int64_t number : numbers) key.push_back(number);
}

}  // namespace meshtorch::internal
