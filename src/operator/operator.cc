// What is known of an operator from its schema, and the pairing of in-place and out= variants with functional
// operators.
#include "operator/operator.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>

#include "operator/corrections.h"
#include "rules/own_rules.h"
#include "signature/call_hash.h"

namespace meshtorch::internal {

std::string rule_name(const c10::OperatorName& op) {
  std::string name = op.name;
  if (name.starts_with("aten::")) name = name.substr(6);
  return op.overload_name.empty() ? name : name + "." + op.overload_name;
}

namespace {

ArgumentInfo::Kind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentInfo::Kind::tensor;
    case c10::TypeKind::OptionalType:
      return kind_of(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType:
      return kind_of(*type.castRaw<c10::ListType>()->getElementType()) == ArgumentInfo::Kind::tensor
                 ? ArgumentInfo::Kind::tensor_list
                 : ArgumentInfo::Kind::other;
    default:
      return ArgumentInfo::Kind::other;
  }
}

// Numbers that are values (alpha, eps) do not decide how a call is split, but for a division by zero.
bool decides(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return true;
    case c10::TypeKind::OptionalType:
      return decides(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType:
      return decides(*type.castRaw<c10::ListType>()->getElementType());
    default:
      return false;
  }
}

bool is_number(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::ListType)
    return is_number(*type.castRaw<c10::ListType>()->getElementType());
  return type.kind() == c10::TypeKind::NumberType;
}

std::string base_name(const std::string& name) {
  const bool is_in_place = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  return is_in_place ? name.substr(0, name.size() - 1) : name;
}

// How many operators came and went.
std::atomic<std::uint64_t> registrations = 1;

using OperatorsByName = std::unordered_multimap<std::string, c10::OperatorHandle>;

// All overloads that write nothing, by their name without overload.
OperatorsByName operators_that_write_nothing() {
  OperatorsByName found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const auto& arguments = op->schema().arguments();
    const bool writes = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) {
      return a.alias_info() != nullptr && a.alias_info()->isWrite();
    });
    if (!writes) found.emplace(name.name, *op);
  }
  return found;
}

// The same, looked for anew after operators came or went. Called under the lock of known_operators().
const OperatorsByName& functional_operators() {
  static OperatorsByName operators;
  static std::uint64_t as_of = 0;
  if (const std::uint64_t now = registrations; as_of != now) {
    operators = operators_that_write_nothing();
    as_of = now;
  }
  return operators;
}

// The operator that takes the same inputs and writes nothing.
std::optional<c10::OperatorHandle> functional_variant(const OperatorInfo& info,
                                                      const c10::FunctionSchema& schema) {
  std::vector<const c10::Argument*> inputs;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    if (!info.arguments[i].is_out) inputs.push_back(&schema.arguments()[i]);
  }
  const auto [begin, end] = functional_operators().equal_range(base_name(schema.name()));
  for (auto candidate = begin; candidate != end; ++candidate) {
    const auto& arguments = candidate->second.schema().arguments();
    const auto same = [](const c10::Argument* a, const c10::Argument& b) {
      return a->name() == b.name() && *a->type() == *b.type();
    };
    if (arguments.size() == inputs.size() &&
        std::equal(inputs.begin(), inputs.end(), arguments.begin(), same)) {
      return candidate->second;
    }
  }
  return std::nullopt;
}

// The rule that is in force for the operator, or for the functional operator that it is a variant of.
const RuleEntry* rule_for(const OperatorInfo& info) {
  return rule_in_force(info.functional ? rule_name(info.functional->operator_name()) : info.name);
}

// Every operator that was called.
struct KnownOperators {
  std::mutex mutex;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<OperatorInfo>> infos;
  // Of operators that are gone: keys of decisions hold the addresses, which must not be those of others.
  std::vector<std::unique_ptr<OperatorInfo>> gone;
};

KnownOperators& known_operators() {
  static auto* const known = new KnownOperators;  // libraries may end when the process does
  return *known;
}

class RegistrationWatch final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override { ++registrations; }

  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    KnownOperators& known = known_operators();
    const std::scoped_lock lock(known.mutex);
    ++registrations;
    const auto found = known.infos.find(op);
    if (found == known.infos.end()) return;
    known.gone.push_back(std::move(found->second));
    known.infos.erase(found);
  }
};

// Tensors remember it longer than the operator may be registered.
TensorOrigin maker_named(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  CallHash hash;
  hash.add(name);
  const std::scoped_lock lock(mutex);
  return {hash.short_form(), names->insert(name).first->c_str()};
}

// "add.Tensor" of "add_.Tensor".
std::string name_of_functional(std::string name) {
  const std::size_t end = std::min(name.find('.'), name.size());
  if (end > 1 && name[end - 1] == '_' && name[end - 2] != '_') name.erase(end - 1, 1);
  return name;
}

int copied_argument_of(const std::string& name) {
  if (name == "detach" || name == "alias" || name == "clone") return 0;
  return name == "copy_" ? 1 : -1;
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle)
    : op(handle),
      name(rule_name(handle.operator_name())),
      as_maker(maker_named(name_of_functional(name))),
      copied_argument(copied_argument_of(name)) {
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& a : schema.arguments()) {
    ArgumentInfo info;
    info.name = a.name();
    info.kind = kind_of(*a.type());
    if (info.kind == ArgumentInfo::Kind::tensor_list) {
      const auto* list = a.type()->castRaw<c10::ListType>();
      info.has_optional_elements =
          list != nullptr && list->getElementType()->kind() == c10::TypeKind::OptionalType;
    }
    info.is_written = a.alias_info() != nullptr && a.alias_info()->isWrite();
    info.is_written |= is_written_anyway(name, info.name);
    info.is_out = info.is_written && (a.is_out() || a.kwarg_only());
    info.is_in_key = info.kind == ArgumentInfo::Kind::other && decides(*a.real_type());
    writes |= info.is_written;
    takes_lists |= info.kind == ArgumentInfo::Kind::tensor_list;
    if (info.is_in_key) key_arguments.push_back(arguments.size());
    if (is_number(*a.type())) numbers.push_back(arguments.size());
    arguments.push_back(std::move(info));
  }
  for (const c10::Argument& result : schema.returns()) {
    int argument = -1;
    if (result.alias_info() != nullptr) {
      const auto& sets = result.alias_info()->beforeSets();
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
        if (alias == nullptr || alias->beforeSets() != sets) continue;
        if (arguments[i].is_written) {
          argument = static_cast<int>(i);
        } else {
          is_view = true;
        }
      }
      // A list of views has its alias inside the list.
      if (argument < 0 && !result.alias_info()->isWrite()) is_view = true;
    }
    returned_argument.push_back(argument);
  }
  changes_shape = op.hasTag(at::Tag::inplace_view);
  is_composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  // The lists that go in come out, element by element, or are written.
  const auto first_tensor = std::ranges::find_if(
      arguments, [](const ArgumentInfo& a) { return a.kind != ArgumentInfo::Kind::other; });
  pairs_lists = takes_lists && first_tensor->kind == ArgumentInfo::Kind::tensor_list && !is_view &&
                !is_composite && std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
                  return kind_of(*result.type()) == ArgumentInfo::Kind::tensor_list;
                });
  is_view |= is_view_anyway(name);
  if (writes) functional = functional_variant(*this, schema);
  rule = rule_for(*this);
  is_reshape = name == "view" || name == "_unsafe_view";
  handling = handling_of(*this);
}

bool gives_views(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

std::optional<std::size_t> OperatorInfo::find(std::string_view argument) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name == argument) return i;
  }
  return std::nullopt;
}

const OperatorInfo& operator_info(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, const OperatorInfo*> seen;
  thread_local std::uint64_t as_of = 0;
  if (const std::uint64_t now = registrations.load(std::memory_order_relaxed); as_of != now) {
    seen.clear();
    as_of = now;
  }
  if (const auto found = seen.find(op); found != seen.end()) return *found->second;
  KnownOperators& known = known_operators();
  const std::scoped_lock lock(known.mutex);
  auto& info = known.infos[op];
  if (!info) info = std::make_unique<OperatorInfo>(op);
  seen.emplace(op, info.get());
  return *info;
}

const OperatorInfo& operator_named(std::string_view name) {
  const std::size_t dot = name.find('.');
  std::string full(name.substr(0, dot));
  if (full.find("::") == std::string::npos) full = "aten::" + full;
  const std::string overload(dot == std::string_view::npos ? "" : name.substr(dot + 1));
  const auto op = c10::Dispatcher::singleton().findSchema({full, overload});
  TORCH_CHECK_VALUE(op, "meshtorch: there is no operator `", full, overload.empty() ? "" : ".", overload,
                    "`\n  do: give its namespace and overload (`aten::add.Tensor`), and register it before "
                    "its rule");
  return operator_info(*op);
}

std::unique_ptr<c10::OpRegistrationListener> watch_of_registrations() {
  return std::make_unique<RegistrationWatch>();
}

void refresh_rules() {
  KnownOperators& known = known_operators();
  const std::scoped_lock lock(known.mutex);
  for (auto& [op, info] : known.infos) info->rule = rule_for(*info);
  outdate_decisions();  // last: other threads may have decided by the old rules until now
}

}  // namespace meshtorch::internal
