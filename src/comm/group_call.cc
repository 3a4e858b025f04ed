// What one rank calls in a group.
#include "comm/group_call.h"

#include <array>

namespace meshtorch::internal {
namespace {

constexpr std::array<const char*, 14> kKindNames{"all_reduce",
                                                 "all_gather",
                                                 "all_gather_into_tensor",
                                                 "reduce_scatter",
                                                 "reduce_scatter_tensor",
                                                 "all_to_all",
                                                 "all_to_all_single",
                                                 "broadcast",
                                                 "reduce",
                                                 "gather",
                                                 "scatter",
                                                 "barrier",
                                                 "send_recv",
                                                 "comparison"};

// Of what calls are for, innermost first, all that is compared.
const CallOrigin* next_of(const CallOrigin& origin) {
  return compares_all_origins.load(std::memory_order_relaxed) ? origin.outer() : nullptr;
}

bool has_place(CallKind kind) {
  // The two sides of a message come from different places.
  return kind != CallKind::send_recv && compares_all_origins.load(std::memory_order_relaxed);
}

// Where all is compared, the module too.
std::string module_of_call() {
  if (!compares_all_origins.load(std::memory_order_relaxed)) return {};
  const auto ask = running_module.load(std::memory_order_relaxed);
  return ask == nullptr ? "" : ask();
}

}  // namespace

const char* to_string(CallKind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

GroupCall::GroupCall(CallKind kind) : kind_(kind), place_(has_place(kind) ? CallPlace::here() : nullptr) {
  hash_.add(static_cast<std::uint64_t>(kind));
  for (const CallOrigin* origin = CallOrigin::current(); origin != nullptr; origin = next_of(*origin))
    hash_.add(origin->name());
  if (const std::string module = module_of_call(); !module.empty()) hash_.add(module);
  if (place_) place_->add_to(hash_);
}

std::string GroupCall::description() const {
  std::string text = std::string(to_string(kind_)) + "(" + arguments() + ")";
  for (const CallOrigin* origin = CallOrigin::current(); origin != nullptr; origin = next_of(*origin))
    text.append(origin == CallOrigin::current() ? " for " : " in ").append(origin->name());
  if (const std::string module = module_of_call(); !module.empty()) text.append(" of module ").append(module);
  return text;
}

std::string GroupCall::text_of(const std::shared_ptr<const CallPlace>& place) {
  return place ? " at " + place->text() : std::string();
}

}  // namespace meshtorch::internal
