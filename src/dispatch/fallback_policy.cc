// What happens when an operator has no rule.
#include "dispatch/fallback_policy.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <set>

#include "meshtorch/rule.h"

namespace meshtorch {
using namespace internal;
namespace {

std::atomic<FallbackPolicy> policy = FallbackPolicy::warn;

}  // namespace

void set_fallback_policy(FallbackPolicy new_policy) { policy = new_policy; }
FallbackPolicy fallback_policy() { return policy; }

void internal::note_replicated_operator(const std::string& name, std::int64_t gathered_bytes) {
  const FallbackPolicy now = policy;
  const std::string full = name.find("::") == std::string::npos ? "aten::" + name : name;
  TORCH_CHECK_NOT_IMPLEMENTED(
      now != FallbackPolicy::error, "meshtorch: `", full,
      "` has no rule, and the fallback policy is error\n  it would gather ", gathered_bytes,
      " bytes on every rank\n  do: register a rule, or set_fallback_policy(FallbackPolicy::warn)");
  if (now == FallbackPolicy::silent) return;
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::scoped_lock lock(mutex);
  if (said.insert(name).second) {
    TORCH_WARN("meshtorch: `", full, "` has no rule: it runs on whole tensors (", gathered_bytes,
               " bytes gathered on every rank). The result is right, but slow and replicated.");
  }
}

}  // namespace meshtorch
