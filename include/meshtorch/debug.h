// Seeing what is communicated.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "meshtorch/api.h"
#include "meshtorch/group.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {

// What was counted of one collective.
struct CommStatistics {
  std::int64_t count = 0;
  // What this rank sends to others if the collective runs as a ring.
  std::int64_t bytes_sent = 0;
  // The time in which this rank could do nothing else.
  double seconds = 0;
};

// The counts of collectives, by kind.
class MESHTORCH_API CommCounts {
 public:
  // 0 for what did not happen.
  std::int64_t operator[](Collective collective) const;
  std::int64_t total() const;
  const std::map<Collective, CommStatistics>& statistics() const { return statistics_; }
  CommStatistics& at(Collective collective) { return statistics_[collective]; }
  // Adds time to a collective that was counted; one that began before counting did adds nothing.
  void spend(Collective collective, double seconds);
  void clear() { statistics_.clear(); }

 private:
  std::map<Collective, CommStatistics> statistics_;
};

// What one module, or all of a program, communicated, hooks and the modules inside it included.
struct ModuleCommCounts {
  CommCounts forward;
  CommCounts backward;
};

// How much a table tells: each level what the one before it does, and more.
enum class TableDetail : std::uint8_t {
  counts,       // collectives by module
  distributed,  // the operators on distributed tensors
  operators,    // those on plain tensors too, shards among them
  all,          // those too that only look at tensors in another way: views, detach, casts
};

// What a CommDebugMode records beside collectives.
struct CommDebugOptions {
  bool notes_operators = false;  // what tables of more detail than counts show
};

namespace internal {
struct CommDebugState;
class OperatorNotes;
}  // namespace internal

// Counts the collectives of this rank, forward and backward, whoever issues them, from its construction to
// its end. Modes nest: each counts by itself.
class MESHTORCH_API CommDebugMode {
 public:
  explicit CommDebugMode(CommDebugOptions options = {});
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  // Counting starts from zero, whether or not the mode was active.
  void restart();
  // Counting ends; the counts stay.
  void stop();

  const CommCounts& get_comm_counts() const;
  std::int64_t get_total_counts() const { return get_comm_counts().total(); }
  // The same, forward and backward apart.
  const ModuleCommCounts& get_pass_counts() const;

  // The counts by module, as "Net", "Net.layers.0.attn", …: modules that can have hooks (see module_hooks.h),
  // below the outermost one that ran, whose class gives the first part.
  const std::map<std::string, ModuleCommCounts>& get_module_counts() const;

  // A table for people, and the same for programs. The first is of all together, the second by module,
  // forward and backward apart. Throws ValueError for details that were not noted.
  std::string table() const;
  std::string module_table(TableDetail detail = TableDetail::counts) const;
  std::string json(TableDetail detail = TableDetail::counts) const;

 private:
  const internal::OperatorNotes& operator_notes() const;

  std::shared_ptr<internal::CommDebugState> state_;
};

// The parameters of a module: name, global shape, type, placements and this rank's shape.
MESHTORCH_API std::string sharding_table(const torch::nn::Module& module);

}  // namespace meshtorch
