// How much the ranks of a group compare before data moves, and calls that they compare though nothing is
// sent.
#include "comm/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "comm/backend.h"
#include "comm/backend_traits.h"
#include "comm/host_meeting.h"
#include "comm/host_tensor.h"
#include "comm/memory_backend.h"
#include "comm/rank_context.h"
#include "comm/watched_store.h"

namespace meshtorch::internal {
namespace {

// A group that something else made, in which this rank compares before each call.
class AdoptedGroup {
 public:
  explicit AdoptedGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group)
      : group_(process_group) {}

  bool is_gone() const { return group_.expired(); }
  void agree(const GroupImpl& group, int world_size, const GroupCall& call) {
    std::call_once(has_met_, [&] { meet_members(group, world_size); });
    if (!meeting_) return;
    meeting_->brought() = {};
    meeting_->enter(call, timeout_);
    meeting_->leave();
  }
  void leave() const {
    if (membership_) membership_->leave();
  }

 private:
  // At the first call, to which all members come.
  void meet_members(const GroupImpl& group, int world_size) {
    const auto backend = group.process_group->getBackend(c10::DeviceType::CPU);
    if (!traits_of(backend->getBackendName()).tells_by_store || !group.process_group->getStore()) return;
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>("meshtorch meets", watched(group.process_group->getStore()));
    if (members_by_host(*store, group.ranks, group.rank).size() > 1) return;
    timeout_ = backend->getBackendOptions()->timeout;
    const std::vector<int> world_ranks(group.ranks.begin(), group.ranks.end());
    membership_ = std::make_unique<HostMembership>(*store, world_ranks, group.rank, /*stage_bytes=*/64);
    meeting_ = membership_->meeting(world_size);
  }

  c10::weak_intrusive_ptr<c10d::ProcessGroup> group_;
  std::once_flag has_met_;
  std::chrono::milliseconds timeout_{};
  std::unique_ptr<HostMembership> membership_;
  std::unique_ptr<GroupMeeting> meeting_;
};

// Kept as long as the groups themselves: this rank may leave the world of torch.distributed and come back.
struct AdoptedGroups {
  std::mutex mutex;
  std::map<const c10d::ProcessGroup*, std::shared_ptr<AdoptedGroup>> all;
};
AdoptedGroups& adopted_groups() {
  static auto* const known = new AdoptedGroups;
  return *known;
}

std::shared_ptr<AdoptedGroup> adopted_group(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group) {
  AdoptedGroups& groups = adopted_groups();
  const std::scoped_lock lock(groups.mutex);
  std::erase_if(groups.all, [](const auto& entry) { return entry.second->is_gone(); });
  std::shared_ptr<AdoptedGroup>& known = groups.all[process_group.get()];
  if (!known) known = std::make_shared<AdoptedGroup>(process_group);
  return known;
}

}  // namespace

void agree_in_adopted_group(const Group& group, const GroupCall& call) {
  const auto context = current_rank_or_null();
  if (!context || !context->world().make_group || context->world().agreement == Agreement::off) return;
  const auto& process_group = group.process_group();
  if (group.size() == 1 || process_group->getBackendType() != c10d::ProcessGroup::BackendType::GLOO) return;
  // The world ranks of other groups are not known.
  if (const auto known = context->find_group(process_group))
    adopted_group(process_group)->agree(*known, context->world().size, call);
}

void leave_adopted_groups() {
  AdoptedGroups& groups = adopted_groups();
  const std::scoped_lock lock(groups.mutex);
  for (const auto& [process_group, adopted] : groups.all) adopted->leave();
}

const char* to_string(Agreement level) {
  switch (level) {
    case Agreement::off:
      return "off";
    case Agreement::calls:
      return "calls";
    case Agreement::on:
      return "on";
    default:
      return "full";
  }
}

Agreement agreement_named(const std::string& name, const char* source) {
  for (const Agreement level : {Agreement::off, Agreement::calls, Agreement::on, Agreement::full}) {
    if (name == to_string(level)) return level;
  }
  TORCH_CHECK_VALUE(false, "meshtorch: there is no level of agreement \"", name, "\"\n  in: ", source,
                    "\n  do: give off, calls, on or full");
}

Agreement agreement_level(std::optional<Agreement> given) {
  if (given) return *given;
  const char* variable = std::getenv("MESHTORCH_AGREEMENT");
  if (variable == nullptr || *variable == '\0') return Agreement::on;
  return agreement_named(variable, "MESHTORCH_AGREEMENT");
}

bool compares_in_full() {
  const auto context = current_rank_or_null();
  return context && context->world().agreement == Agreement::full;
}

void agree_on(const Group& group, const GroupCall& call) {
  if (group.size() == 1 || group.rank() < 0) return;
  c10d::ProcessGroup& members = *group.process_group();
  using Type = c10d::ProcessGroup::BackendType;
  if (members.getBackendType() != Type::CUSTOM && members.getBackendType() != Type::GLOO) return;
  agree_in_adopted_group(group, call);
  const auto backend = members.getBackend(c10::DeviceType::CPU);
  if (auto* comparing = dynamic_cast<Comparing*>(backend.get())) comparing->compare(call);
}

bool all_say(const Group& group, const char* question, bool mine) {
  if (group.size() == 1 || group.rank() < 0) return mine;
  const AlikeCall call(question);
  c10d::ProcessGroup& members = *group.process_group();
  if (auto* memory = memory_backend_of(members)) return memory->all_say(call, mine);
  const auto is_cpu = [](const c10::Device& device) { return device.is_cpu(); };
  if (std::ranges::none_of(members.getDeviceTypes(), is_cpu)) return mine;
  const AgreedCall agreed(call, group);
  at::Tensor answer = at::full({1}, mine ? 1 : 0, on_host(at::kByte));
  at::Tensor answers = at::empty({group.size()}, answer.options());
  members.getBackend(c10::DeviceType::CPU)
      ->_allgather_base(answers, answer, c10d::AllgatherOptions())
      ->wait();
  const std::span said(answers.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(group.size()));
  return std::ranges::all_of(said, [](std::uint8_t yes) { return yes == 1; });
}

AlikeCall::AlikeCall(std::string text) : GroupCall(CallKind::comparison), text_(std::move(text)) {
  hash_.add(text_);
}

namespace {

// What a rank of this world declares; null where its ranks do not compare at this level.
std::shared_ptr<Declarations> declarations_at(Agreement least, const std::shared_ptr<RankContext>& context) {
  if (!context || context->world().agreement < least || !traits_of(context->world().backend).has_peers)
    return nullptr;
  const World& world = context->world();
  return world.threads ? world.threads->declarations(world.rank) : declarations_of_process();
}

}  // namespace

void declare(const std::vector<std::int64_t>& world_ranks, const CallHash& hash, const CallWords& words,
             const std::function<Group()>& everybody, DeclaredKind kind) {
  if (world_ranks.size() == 1) return;
  const auto context = current_rank_or_null();
  const auto declarations = declarations_at(Agreement::calls, context);
  if (!declarations) return;
  if (context->world().agreement == Agreement::full) return agree_on(everybody(), AlikeCall(words()));
  declarations->add(world_ranks, hash, words, kind);
}

std::uint64_t number_of_next_tensor(const std::vector<std::int64_t>& world_ranks) {
  const auto declarations = declarations_at(Agreement::on, current_rank_or_null());
  return declarations ? declarations->number_of_next_tensor(world_ranks) : 0;
}

std::shared_ptr<Replicas> compared_replicas() {
  const auto declarations = declarations_at(Agreement::on, current_rank_or_null());
  return declarations ? declarations->replicas() : nullptr;
}

}  // namespace meshtorch::internal
