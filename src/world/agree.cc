// Calls and answers that the ranks of a group compare though no data moves.
#include "world/agree.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "agreement/shm_membership.h"
#include "backends/backend_traits.h"
#include "backends/comparing.h"
#include "liveness/watched_store.h"
#include "runtime/host_tensor.h"
#include "world/rank_context.h"

namespace meshtorch::internal {
namespace {

// A group that something else made, in which this rank compares before each call.
class AdoptedGroup {
 public:
  explicit AdoptedGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group)
      : group_(process_group) {}

  bool is_gone() const { return group_.expired(); }
  void agree(const GroupImpl& group, int world_size, const CollectiveSignature& call) {
    std::call_once(has_met_, [&] { meet_members(group, world_size); });
    if (!meeting_) return;
    meeting_->call_slot() = {};
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

void agree_in_adopted_group(const Group& group, const CollectiveSignature& call) {
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

bool compares_in_full() {
  const auto context = current_rank_or_null();
  return context && context->world().agreement == Agreement::full;
}

void agree_on(const Group& group, const CollectiveSignature& call) {
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
  const UncommunicatedCall call(question);
  c10d::ProcessGroup& members = *group.process_group();
  const auto is_cpu = [](const c10::Device& device) { return device.is_cpu(); };
  const bool is_for_devices_only = members.getBackendType() != c10d::ProcessGroup::BackendType::CUSTOM &&
                                   std::ranges::none_of(members.getDeviceTypes(), is_cpu);
  if (is_for_devices_only) return mine;
  const auto backend = members.getBackend(c10::DeviceType::CPU);
  if (auto* comparing = dynamic_cast<Comparing*>(backend.get())) {
    if (const auto all = comparing->all_say(call, mine)) return *all;
  }
  const AgreementScope agreed(call, group);
  at::Tensor answer = at::full({1}, mine ? 1 : 0, on_host(at::kByte));
  at::Tensor answers = at::empty({group.size()}, answer.options());
  backend->_allgather_base(answers, answer, c10d::AllgatherOptions())->wait();
  const std::span said(answers.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(group.size()));
  return std::ranges::all_of(said, [](std::uint8_t yes) { return yes == 1; });
}

namespace {

// What a rank of this world declares; null where its ranks do not compare at this level.
std::shared_ptr<LocalCallLog> local_calls_at(Agreement least, const std::shared_ptr<RankContext>& context) {
  if (!context || context->world().agreement < least || !traits_of(context->world().backend).has_peers)
    return nullptr;
  const World& world = context->world();
  return world.threads ? world.threads->local_calls(world.rank) : local_calls_of_process();
}

}  // namespace

void log_local_call(const std::vector<std::int64_t>& world_ranks, const CallHash& hash,
                    const CallWords& words, const std::function<Group()>& everybody, LocalCallKind kind) {
  if (world_ranks.size() == 1) return;
  const auto context = current_rank_or_null();
  const auto local_calls = local_calls_at(Agreement::calls, context);
  if (!local_calls) return;
  if (context->world().agreement == Agreement::full)
    return agree_on(everybody(), UncommunicatedCall(words()));
  local_calls->add(world_ranks, hash, words, kind);
}

std::uint64_t number_of_next_tensor(const std::vector<std::int64_t>& world_ranks) {
  const auto local_calls = local_calls_at(Agreement::on, current_rank_or_null());
  return local_calls ? local_calls->number_of_next_tensor(world_ranks) : 0;
}

std::shared_ptr<Replicas> compared_replicas() {
  const auto local_calls = local_calls_at(Agreement::on, current_rank_or_null());
  return local_calls ? local_calls->replicas() : nullptr;
}

}  // namespace meshtorch::internal
