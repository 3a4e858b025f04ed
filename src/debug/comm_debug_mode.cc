// CommDebugMode: counts c10d operators as they pass LibTorch's dispatcher, through a thread-local observer.
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "debug/operator_notes.h"
#include "debug/running_modules.h"
#include "meshtorch/debug.h"
#include "transport/comm_wait.h"

namespace meshtorch {
using namespace internal;

struct internal::CommDebugState {
  CommCounts counts;
  ModuleCommCounts passes;
  std::map<std::string, ModuleCommCounts> modules;
  std::optional<OperatorNotes> operators;
};

namespace {

// How much of its payload a rank of a ring of n sends.
enum class Traffic : std::uint8_t { none, part, all, others, twice };

struct Operator {
  std::string_view name;  // without "c10d::"
  Collective kind;
  std::size_t payload;  // the argument that holds what this rank gives
  Traffic traffic;
};
constexpr std::array<Operator, 20> kOperators{{
    {"allreduce_", Collective::all_reduce, 0, Traffic::twice},
    {"allreduce_coalesced_", Collective::all_reduce_coalesced, 0, Traffic::twice},
    {"allgather_", Collective::all_gather, 1, Traffic::others},
    {"allgather_coalesced_", Collective::all_gather, 1, Traffic::others},
    {"_allgather_base_", Collective::all_gather_into_tensor, 1, Traffic::others},
    {"allgather_into_tensor_coalesced_", Collective::all_gather_into_tensor_coalesced, 1, Traffic::others},
    {"reduce_scatter_", Collective::reduce_scatter, 1, Traffic::part},
    {"_reduce_scatter_base_", Collective::reduce_scatter_tensor, 1, Traffic::part},
    {"reduce_scatter_tensor_coalesced_", Collective::reduce_scatter_tensor_coalesced, 1, Traffic::part},
    {"alltoall_", Collective::all_to_all, 1, Traffic::part},
    {"alltoall_base_", Collective::all_to_all_single, 1, Traffic::part},
    {"broadcast_", Collective::broadcast, 0, Traffic::all},
    {"reduce_", Collective::reduce, 0, Traffic::all},
    {"gather_", Collective::gather, 1, Traffic::all},
    {"scatter_", Collective::scatter, 1, Traffic::part},
    {"send", Collective::send, 0, Traffic::all},
    {"recv_", Collective::recv, 0, Traffic::none},
    {"recv_any_source_", Collective::recv, 0, Traffic::none},
    {"barrier", Collective::barrier, 0, Traffic::none},
    {"monitored_barrier_", Collective::barrier, 0, Traffic::none},
}};

const Operator* find_operator(std::string_view name) {
  constexpr std::string_view kPrefix = "c10d::";
  if (!name.starts_with(kPrefix)) return nullptr;
  name.remove_prefix(kPrefix.size());
  const auto* found =
      std::find_if(kOperators.begin(), kOperators.end(), [&](const Operator& o) { return o.name == name; });
  return found == kOperators.end() ? nullptr : found;
}

std::int64_t bytes_in(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    return t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0;
  }
  std::int64_t bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) bytes += static_cast<std::int64_t>(t.nbytes());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) bytes += bytes_in(item);
  }
  return bytes;
}

std::int64_t group_size(c10::ArrayRef<const c10::IValue> inputs) {
  for (const c10::IValue& value : inputs) {
    if (value.isCustomClass() &&
        value.type() == c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>()) {
      return value.toCustomClass<c10d::ProcessGroup>()->getSize();
    }
  }
  return 1;
}

// Of the rows that an all_to_all splits, the part that goes to others; nothing if it splits equally.
std::optional<std::int64_t> bytes_to_others(std::int64_t bytes, c10::ArrayRef<const c10::IValue> inputs) {
  constexpr std::size_t kGroup = 2, kSendSplits = 4;
  if (inputs.size() <= kSendSplits || !inputs[kSendSplits].isIntList()) return std::nullopt;
  const std::vector<std::int64_t> splits = inputs[kSendSplits].toIntVector();
  const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (splits.empty()) return std::nullopt;
  const auto self = static_cast<std::size_t>(inputs[kGroup].toCustomClass<c10d::ProcessGroup>()->getRank());
  return rows == 0 ? 0 : bytes / rows * (rows - splits.at(self));
}

std::int64_t traffic_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (op.traffic == Traffic::none || op.payload >= inputs.size()) return 0;
  const std::int64_t bytes = bytes_in(inputs[op.payload]);
  const std::int64_t n = group_size(inputs);
  if (op.kind == Collective::all_to_all_single) {
    if (const auto sent = bytes_to_others(bytes, inputs)) return *sent;
  }
  switch (op.traffic) {
    case Traffic::part:
      return bytes * (n - 1) / n;
    case Traffic::twice:
      return 2 * bytes * (n - 1) / n;
    case Traffic::others:
      return bytes * (n - 1);
    default:
      return n > 1 ? bytes : 0;
  }
}

// The modes that are active on one rank, and the observer that feeds them.
struct ActiveModes {
  std::vector<std::shared_ptr<CommDebugState>> states;
  at::CallbackHandle observer = 0;
};

ActiveModes& active() { return c10d::RankLocal<ActiveModes>::get(); }

struct CallContext : at::ObserverContext {
  explicit CallContext(Collective kind) : wait(kind) {}
  CommWait wait;
};

// What an operator on plain tensors calls is its own matter.
struct InsidePlainCall : at::ObserverContext {
  InsidePlainCall() { ++depth; }
  ~InsidePlainCall() override { --depth; }
  static inline thread_local int depth = 0;
};

std::unique_ptr<at::ObserverContext> note_operator(const at::RecordFunction& fn) {
  const auto notes = [](const auto& state) { return state->operators.has_value(); };
  if (InsidePlainCall::depth > 0 || std::ranges::none_of(active().states, notes)) return nullptr;
  const auto call = operator_call(fn);
  if (!call) return nullptr;
  const RunningModules running = running_modules();
  for (const auto& state : active().states) {
    if (state->operators) state->operators->note(*call, running);
  }
  if (call->is_distributed) return nullptr;
  return std::make_unique<InsidePlainCall>();
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  const Operator* op = find_operator(fn.name());
  if (op == nullptr) return note_operator(fn);
  const std::int64_t bytes = traffic_of(*op, fn.inputs());
  const auto add = [&](CommCounts& counts) {
    CommStatistics& statistics = counts.at(op->kind);
    statistics.count += 1;
    statistics.bytes_sent += bytes;
  };
  const RunningModules running = running_modules();
  for (const auto& state : active().states) {
    add(state->counts);
    add(running.is_backward ? state->passes.backward : state->passes.forward);
    for (const std::string& module : running.paths) {
      ModuleCommCounts& counts = state->modules[module];
      add(running.is_backward ? counts.backward : counts.forward);
    }
  }
  return std::make_unique<CallContext>(op->kind);
}

void count_wait(Collective kind, double seconds) {
  if (active().states.empty()) return;
  // A wait counts where it happens, which may be another module than the one that began the collective.
  const RunningModules running = running_modules();
  for (const auto& state : active().states) {
    state->counts.spend(kind, seconds);
    for (const std::string& module : running.paths) {
      ModuleCommCounts& counts = state->modules[module];
      (running.is_backward ? counts.backward : counts.forward).at(kind).seconds += seconds;
    }
  }
}

void activate(const std::shared_ptr<CommDebugState>& state) {
  on_comm_wait = &count_wait;
  ActiveModes& modes = active();
  if (std::find(modes.states.begin(), modes.states.end(), state) != modes.states.end()) return;
  if (modes.states.empty()) {
    modes.observer = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&on_start, [](const at::RecordFunction&, at::ObserverContext*) {})
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
    watch_modules(true);
  }
  modes.states.push_back(state);
}

void deactivate(const std::shared_ptr<CommDebugState>& state) {
  ActiveModes& modes = active();
  if (std::erase(modes.states, state) == 0 || !modes.states.empty()) return;
  at::removeCallback(modes.observer);
  watch_modules(false);
}

}  // namespace

std::int64_t CommCounts::operator[](Collective collective) const {
  const auto found = statistics_.find(collective);
  return found == statistics_.end() ? 0 : found->second.count;
}

void CommCounts::spend(Collective collective, double seconds) {
  const auto found = statistics_.find(collective);
  if (found != statistics_.end()) found->second.seconds += seconds;
}

std::int64_t CommCounts::total() const {
  std::int64_t total = 0;
  for (const auto& [collective, statistics] : statistics_) total += statistics.count;
  return total;
}

CommDebugMode::CommDebugMode(CommDebugOptions options) : state_(std::make_shared<CommDebugState>()) {
  if (options.notes_operators) state_->operators.emplace();
  activate(state_);
}
CommDebugMode::~CommDebugMode() { deactivate(state_); }

void CommDebugMode::restart() {
  state_->counts.clear();
  state_->passes = {};
  state_->modules.clear();
  if (state_->operators) state_->operators.emplace();
  activate(state_);
}

void CommDebugMode::stop() { deactivate(state_); }

const CommCounts& CommDebugMode::get_comm_counts() const { return state_->counts; }

const ModuleCommCounts& CommDebugMode::get_pass_counts() const { return state_->passes; }

const OperatorNotes& CommDebugMode::operator_notes() const {
  TORCH_CHECK_VALUE(state_->operators,
                    "meshtorch: a table of operators was asked for, and they were not noted\n  in: "
                    "CommDebugMode\n  do: make it as CommDebugMode({.notes_operators = true})");
  return *state_->operators;
}

const std::map<std::string, ModuleCommCounts>& CommDebugMode::get_module_counts() const {
  return state_->modules;
}

}  // namespace meshtorch
