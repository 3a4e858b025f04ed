// Calls and answers that the ranks of a group compare though no data moves.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/group.h"
#include "signature/collective_signature.h"
#include "signature/local_call_log.h"

namespace meshtorch::internal {

// Whether the world of the calling rank compares in full; false outside of one.
bool compares_in_full();

// Blocks until all members have come with an equal call; else throws on each what they called. Nothing where
// the backend cannot compare, or this rank is outside.
void agree_on(const Group& group, const CollectiveSignature& call);

// Whether all members say yes to a question that all of them ask. Sends no more than the answers, and is not
// counted as a collective. A member of a group for devices only, where the host would wait for them, answers
// for itself.
bool all_say(const Group& group, const char* question, bool mine);

// The same in a group that something else made, such as torch.distributed, on a backend that compares
// nothing: before each call, where the world asked for the group and all its members are on this host. Calls
// that others make in such a group keep their order, since nothing is put off.
void agree_in_adopted_group(const Group& group, const CollectiveSignature& call);
// Tells the members of all such groups that this process will not come again.
MESHTORCH_FOR_PYTHON void leave_adopted_groups();

// A call on its way to c10d, which knows less about it: the group's backend compares it, or, where something
// else made the group, the ranks do here.
class AgreementScope {
 public:
  AgreementScope(const CollectiveSignature& call, const Group& group) : declared_(call) {
    agree_in_adopted_group(group, call);
  }

 private:
  const ScopedCallDescription declared_;
};

// A call that sends nothing and that all of these world ranks make alike, this one among them. Each group
// among them compares it with its next collective; in a world that compares in full, all of them at once, in
// the group that `everybody` gives.
void log_local_call(const std::vector<std::int64_t>& world_ranks, const CallHash& hash,
                    const CallWords& words, const std::function<Group()>& everybody,
                    LocalCallKind kind = LocalCallKind::call);

// Returns the number of a tensor among those that these world ranks make alike; 0 where they do not compare
// what calls are about.
std::uint64_t number_of_next_tensor(const std::vector<std::int64_t>& world_ranks);
// Returns the replicas of this rank, null where they are not compared.
std::shared_ptr<Replicas> compared_replicas();

}  // namespace meshtorch::internal
