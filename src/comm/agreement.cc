// How much the ranks of a group compare before data moves, and calls that they compare though nothing is
// sent.
#include "comm/agreement.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <utility>

#include "comm/backend_traits.h"
#include "comm/rank_context.h"

namespace meshtorch::internal {

const char* to_string(Agreement level) {
  return level == Agreement::off ? "off" : level == Agreement::on ? "on" : "full";
}

Agreement agreement_named(const std::string& name, const char* source) {
  for (const Agreement level : {Agreement::off, Agreement::on, Agreement::full}) {
    if (name == to_string(level)) return level;
  }
  TORCH_CHECK_VALUE(false, "meshtorch: there is no level of agreement \"", name, "\"\n  in: ", source,
                    "\n  do: give off, on or full");
}

Agreement agreement_level(std::optional<Agreement> given) {
  if (given) return *given;
  const char* variable = std::getenv("MESHTORCH_AGREEMENT");
  if (variable == nullptr || *variable == '\0') return Agreement::on;
  return agreement_named(variable, "MESHTORCH_AGREEMENT");
}

void agree_on(const Group& group, const GroupCall& call) {
  if (group.size() == 1 || group.rank() < 0) return;
  c10d::ProcessGroup& members = *group.process_group();
  using Type = c10d::ProcessGroup::BackendType;
  if (members.getBackendType() != Type::CUSTOM && members.getBackendType() != Type::GLOO) return;
  const auto backend = members.getBackend(c10::DeviceType::CPU);
  if (auto* comparing = dynamic_cast<Comparing*>(backend.get())) comparing->compare(call);
}

AlikeCall::AlikeCall(std::string text) : GroupCall(CallKind::comparison), text_(std::move(text)) {
  hash_.add(text_);
}

void declare(const std::vector<std::int64_t>& world_ranks, const CallHash& hash, const CallWords& words,
             const std::function<Group()>& everybody) {
  const auto context = current_rank_or_null();
  if (!context || world_ranks.size() == 1) return;
  const World& world = context->world();
  if (world.agreement == Agreement::off || !traits_of(world.backend).has_peers) return;
  if (world.agreement == Agreement::full) return agree_on(everybody(), AlikeCall(words()));
  const auto& declarations =
      world.threads ? world.threads->declarations(world.rank) : declarations_of_process();
  declarations->add(world_ranks, hash, words);
}

}  // namespace meshtorch::internal
