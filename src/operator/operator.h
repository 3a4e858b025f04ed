// What is known of an operator from its schema: where its tensors are, what it writes, which rule it has.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"
#include "operator/handling.h"
#include "rules/table.h"
#include "signature/call_subject.h"

namespace meshtorch::internal {

struct ArgumentInfo {
  enum class Kind : std::uint8_t {
    tensor,
    tensor_list,
    other
  };  // optional tensors are tensors that may be undefined or none
  std::string name;
  Kind kind = Kind::other;
  bool has_optional_elements = false;  // of a list
  bool is_written = false;
  bool is_out = false;     // a keyword-only tensor that is only written
  bool is_in_key = false;  // a number, list or flag on which shapes and splits may depend
};

struct MESHTORCH_FOR_PYTHON OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& op);

  // The number of the argument with this name, if there is one.
  std::optional<std::size_t> find(std::string_view argument) const;

  c10::OperatorHandle op;
  std::string name;       // "add.Tensor", with the namespace if it is not aten
  TensorOrigin as_maker;  // of what it makes of nothing; an operator in place is the functional one
  int copied_argument;    // the one whose values the result has, -1 if there is none
  std::vector<ArgumentInfo> arguments;
  std::vector<std::size_t> key_arguments;  // those that are in the key
  std::vector<std::size_t> numbers;  // values (alpha, other), of which the key has whether they are zero
  bool takes_lists = false;          // of tensors
  bool pairs_lists = false;          // each element of them is treated by itself: _foreach_ and _fused_
  // For each result, the argument that it is (in-place, out=), or -1.
  std::vector<int> returned_argument;
  bool is_view = false;        // a result shares the memory of an argument that is not written
  bool writes = false;         // some argument is written
  bool changes_shape = false;  // in place, shape included: squeeze_, t_
  bool is_composite = false;   // LibTorch can decompose it

  // The rule of the operator, or of the functional operator that it is a variant of. Null: none.
  std::atomic<const RuleEntry*> rule = nullptr;
  // The functional operator with the same arguments, for in-place and out= variants.
  std::optional<c10::OperatorHandle> functional;
  // view and its kin: on a shard that does not lie as the whole does it is a copy.
  bool is_reshape = false;
  Handling handling;
};

// Some result is a view of an argument, by the schema.
bool gives_views(const c10::FunctionSchema& schema);

// Made at the first call of the operator and kept as long as it is registered.
const OperatorInfo& operator_info(const c10::OperatorHandle& op);

// Tells operator_info of operators that come and go: a handle is a place, which the next one may get.
std::unique_ptr<c10::OpRegistrationListener> watch_of_registrations();

// The operator of a name as rules have it: "add.Tensor", "my::scale". Throws ValueError if there is none.
MESHTORCH_FOR_PYTHON const OperatorInfo& operator_named(std::string_view name);

// The name as rules have it: "add.Tensor", with the namespace if it is not aten.
std::string rule_name(const c10::OperatorName& op);

// Looks up the rules of all operators anew.
MESHTORCH_FOR_PYTHON void refresh_rules();

}  // namespace meshtorch::internal
