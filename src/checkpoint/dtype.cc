// The names that safetensors files give to LibTorch's element types.
#include "checkpoint/dtype.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace meshtorch::safetensors::internal {
namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 17> kTypes{{
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"I16", at::kShort},
    {"I32", at::kInt},
    {"I64", at::kLong},
    {"U16", at::kUInt16},
    {"U32", at::kUInt32},
    {"U64", at::kUInt64},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F32", at::kFloat},
    {"F64", at::kDouble},
    {"C64", at::kComplexFloat},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
}};

}  // namespace

std::string dtype_name(at::ScalarType type, const std::string& tensor) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& entry) { return entry.second == type; });
  TORCH_CHECK_NOT_IMPLEMENTED(found != kTypes.end(), "meshtorch: safetensors files have no type for ",
                              c10::toString(type), "\n  in: writing tensor \"", tensor,
                              "\"\n  do: convert it first");
  return std::string(found->first);
}

at::ScalarType dtype_named(const std::string& name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& entry) { return entry.first == name; });
  TORCH_CHECK_NOT_IMPLEMENTED(found != kTypes.end(), "meshtorch: LibTorch has no type for ", name,
                              "\n  in: reading a tensor\n  do: store it in another type");
  return found->second;
}

}  // namespace meshtorch::safetensors::internal
