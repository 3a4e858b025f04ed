// What one rank calls in a group: all that the ranks must agree on, as a hash, and in words for when they do
// not.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "meshtorch/agreement.h"
#include "signature/call_hash.h"
#include "signature/call_place.h"
#include "signature/call_subject.h"

namespace meshtorch::internal {

enum class CallKind : std::uint32_t {
  all_reduce,
  all_gather,
  all_gather_into_tensor,
  reduce_scatter,
  reduce_scatter_tensor,
  all_to_all,
  all_to_all_single,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier,
  send_recv,
  comparison,  // of a call that sends nothing
};
const char* to_string(CallKind kind);

// How much of `unit` one rank sends to each other, and expects from it.
struct CallSplits {
  std::span<const std::int64_t> sends;
  std::span<const std::int64_t> receives;
  const char* unit;
};

// What is kept of a call after it: the element type and the sizes of its first tensor, and its reduction; -1
// and none where it has none. The sizes belong to the call's arguments.
struct CallFacts {
  int type = -1;
  int op = -1;
  std::span<const std::int64_t> sizes = {};
};

class CollectiveSignature {
 public:
  explicit CollectiveSignature(CallKind kind);
  virtual ~CollectiveSignature() = default;

  CallKind kind() const { return kind_; }
  const CallHash& hash() const { return hash_; }
  const CallFacts& facts() const { return facts_; }
  // Which tensor's data it moves, kUnknownOrigin if this rank does not know: compared by the ranks that know.
  std::uint64_t subject() const { return subject_; }
  // Null if all ranks know them from what they agree on.
  const CallSplits* splits() const { return splits_; }
  // "all_reduce(Float[4], sum)", and what it is for if that is known.
  virtual std::string description() const;
  // From where it is called; null where ranks do not compare that.
  const std::shared_ptr<const CallPlace>& place() const { return place_; }
  // Both.
  std::string text() const { return description() + text_of(place_); }
  static std::string text_of(const std::shared_ptr<const CallPlace>& place);

 protected:
  virtual std::string arguments() const { return {}; }

  // What level `on` compares besides the arguments.
  void add_subject();

  CallHash hash_;
  CallFacts facts_;
  const CallSplits* splits_ = nullptr;

 private:
  CallKind kind_;
  bool is_in_full_;  // compared with all that it is for, its module and its place
  TensorOrigin moved_;
  std::uint64_t subject_ = 1;  // of no tensor
  SourceLine line_;
  std::shared_ptr<const CallPlace> place_;
};

// A call that sends nothing and that all members make alike: "manual_seed(1)".
class UncommunicatedCall : public CollectiveSignature {
 public:
  explicit UncommunicatedCall(std::string text);
  std::string description() const override { return text_; }

 private:
  std::string text_;
};

// The call that one of meshtorch's functions describes, on this thread while it hands it to c10d, which knows
// less about it.
class ScopedCallDescription {
 public:
  explicit ScopedCallDescription(const CollectiveSignature& call) : outer_(current_) { current_ = &call; }
  ~ScopedCallDescription() { current_ = outer_; }
  ScopedCallDescription(const ScopedCallDescription&) = delete;
  ScopedCallDescription& operator=(const ScopedCallDescription&) = delete;

  // Null if there is none.
  static const CollectiveSignature* current() { return current_; }

 private:
  const CollectiveSignature* outer_;
  inline static thread_local const CollectiveSignature* current_ = nullptr;
};

// Gives the level at which the calling rank compares its calls; set by the first world. Without one ranks
// compare at the level `on`.
inline std::atomic<Agreement (*)()> agreement_of_rank = nullptr;

// Gives the path of the module that runs on the calling thread, empty if none does; set by whoever knows
// modules, for worlds that compare in full.
inline std::atomic<std::string (*)()> running_module = nullptr;

// What collectives are called for on this thread while it lives: an operator, say. Part of what ranks agree
// on, so that equal calls for different ends are told apart.
class CallOrigin {
 public:
  // The name must live as long.
  explicit CallOrigin(const std::string& name) : name_(&name), outer_(current_) { current_ = this; }
  ~CallOrigin() { current_ = outer_; }
  CallOrigin(const CallOrigin&) = delete;
  CallOrigin& operator=(const CallOrigin&) = delete;

  // The innermost, null if there is none.
  static const CallOrigin* current() { return current_; }
  const std::string& name() const { return *name_; }
  // What it is called for itself, null if there is nothing.
  const CallOrigin* outer() const { return outer_; }

 private:
  const std::string* name_;
  const CallOrigin* outer_;
  inline static thread_local const CallOrigin* current_ = nullptr;
};

}  // namespace meshtorch::internal
