// How much the ranks of a group compare before data moves, and calls that they compare though nothing is
// sent.
#include "comm/agreement.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <utility>

#include "comm/rank_context.h"

namespace meshtorch::internal {

Agreement agreement_level() {
  const char* variable = std::getenv("MESHTORCH_AGREEMENT");
  const std::string name = variable == nullptr ? "" : variable;
  if (name == "off") return Agreement::off;
  if (name == "full") return Agreement::full;
  TORCH_CHECK_VALUE(name.empty() || name == "on", "meshtorch: there is no level of agreement \"", name,
                    "\"\n  in: MESHTORCH_AGREEMENT\n  do: give off, on or full");
  return Agreement::on;
}

bool agrees_in_full() {
  const auto context = current_rank_or_null();
  return context && context->world().agreement == Agreement::full;
}

void agree_on(const Group& group, const GroupCall& call) {
  if (group.size() == 1 || group.rank() < 0) return;
  c10d::ProcessGroup& members = *group.process_group();
  using Type = c10d::ProcessGroup::BackendType;
  if (members.getBackendType() != Type::CUSTOM && members.getBackendType() != Type::GLOO) return;
  const auto backend = members.getBackend(c10::DeviceType::CPU);
  if (auto* comparing = dynamic_cast<Comparing*>(backend.get())) comparing->compare(call);
}

AlikeCall::AlikeCall(std::string what, std::string arguments)
    : GroupCall(CallKind::comparison), what_(std::move(what)), arguments_(std::move(arguments)) {
  hash_.add(what_);
  hash_.add(arguments_);
}

}  // namespace meshtorch::internal
