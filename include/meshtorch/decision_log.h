// Why data moved: the redistributions of this rank, and the choices behind those that operators made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/placement.h"

namespace meshtorch {

namespace internal {
struct DecisionLogState;
}  // namespace internal

// Notes every redistribution of this rank, forward and backward, from its construction to stop() or its end.
// Logs nest: each notes by itself.
class MESHTORCH_API DecisionLog {
 public:
  // A way to run an operator on one mesh axis, with its price.
  struct Option {
    std::string option;  // "S(0), R -> S(0)"
    bool communicates = false;
    double seconds = 0;  // estimated
    bool is_chosen = false;
  };
  struct AxisOptions {
    std::string axis;
    std::vector<Option> options;
  };
  struct Reason {
    std::string rule;
    std::vector<AxisOptions> axes;  // for each axis, of a rule over lists for each element in turn
  };
  struct Entry {
    std::string module;  // that ran, as CommDebugMode names them; may be empty
    bool is_backward = false;
    std::string op;        // that needed it; empty: a style or a call of redistribute asked for it
    std::string argument;  // of the operator
    std::vector<std::int64_t> shape;
    Placements from, to;
    std::vector<std::string> steps;  // "all_gather over 8 ranks"
    std::int64_t bytes_sent = 0;     // each time, by the rank that sends most
    double seconds = 0;              // each time, estimated
    std::int64_t count = 0;
    std::shared_ptr<const Reason> reason;  // null if no rule was asked
  };

  DecisionLog();
  ~DecisionLog();
  DecisionLog(const DecisionLog&) = delete;
  DecisionLog& operator=(const DecisionLog&) = delete;

  void stop();
  // Equal ones are one entry with a count; in the order in which they first happened.
  const std::vector<Entry>& entries() const;
  // A table for people: who, what, how often, and for an operator's choice the next best with its price.
  std::string table() const;

 private:
  std::shared_ptr<internal::DecisionLogState> state_;
};

}  // namespace meshtorch
