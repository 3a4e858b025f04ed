// DecisionLog: entries made where redistributions run, with the options of the operator call around them.
#include "meshtorch/decision_log.h"

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include "core/number_text.h"
#include "debug/running_modules.h"
#include "dispatch/call_record_scope.h"
#include "mesh/mesh_impl.h"
#include "operator/situation.h"
#include "tensor/meta.h"
#include "tensor/move_record.h"

namespace meshtorch {
using namespace internal;

struct internal::DecisionLogState {
  std::vector<DecisionLog::Entry> entries;
};

namespace {

using Reason = DecisionLog::Reason;

struct Call {
  const OperatorInfo* info;
  const Operands* operands;
  c10::ArrayRef<c10::IValue> arguments;
  MeshImpl* mesh;
  std::shared_ptr<const Reason> reason;  // once it was asked for
  bool is_explained = false;
};

struct ActiveLogs {
  std::vector<std::shared_ptr<DecisionLogState>> states;
  std::vector<Call> calls;  // the innermost last
};

ActiveLogs& logs() { return c10d::RankLocal<ActiveLogs>::get(); }

std::string axis_name(const MeshImpl& mesh, std::size_t axis) {
  return mesh.names().empty() ? "axis " + std::to_string(axis) : mesh.names()[axis];
}

std::shared_ptr<const Reason> reason_of(const Call& given) {
  const RuleEntry* rule = given.info->rule;
  if (rule == nullptr) return nullptr;
  const auto call = BoundCall::bind(*rule, *given.info, *given.operands, given.arguments);
  if (!call) return nullptr;
  auto reason = std::make_shared<Reason>();
  reason->rule = call->use().rule.to_string();
  std::vector<std::vector<PricedOption>> considered;
  choose(*call->bound(), situation_of(*call, *given.info, *given.operands, *given.mesh), &considered);
  for (std::size_t i = 0; i < considered.size(); ++i) {
    DecisionLog::AxisOptions& axis = reason->axes.emplace_back();
    axis.axis = axis_name(*given.mesh, i % given.mesh->shape().size());
    for (const PricedOption& priced : considered[i])
      axis.options.push_back(
          {priced.option.to_string(), priced.communicates, priced.seconds, priced.is_chosen});
  }
  return reason;
}

// The operand whose shard this is, if it is one of the call's.
const Operand* operand_with(const Call& call, const at::Tensor& local) {
  for (const Operand& operand : *call.operands) {
    const at::Tensor& own = operand.meta != nullptr ? operand.meta->local : operand.tensor;
    if (own.is_same(local)) return &operand;
  }
  return nullptr;
}

void describe_steps(const Plan& plan, const MeshImpl& mesh, DecisionLog::Entry& entry) {
  for (const Step& step : plan.steps) {
    std::string text(to_string(step.kind));
    if (is_collective(step.kind)) {
      std::string axes;
      for (const int axis : step.axes)
        axes += (axes.empty() ? "" : ", ") + axis_name(mesh, static_cast<std::size_t>(axis));
      text += axes.empty() ? " between meshes" : " over " + axes;
    }
    entry.steps.push_back(std::move(text));
  }
  entry.bytes_sent = plan.bytes_sent;
  entry.seconds = plan.seconds;
}

bool is_same(const Reason* a, const Reason* b) {
  if (a == b || a == nullptr || b == nullptr) return a == b;
  const auto same_option = [](const DecisionLog::Option& x, const DecisionLog::Option& y) {
    return x.option == y.option && x.seconds == y.seconds && x.is_chosen == y.is_chosen;
  };
  return a->rule == b->rule &&
         std::equal(a->axes.begin(), a->axes.end(), b->axes.begin(), b->axes.end(),
                    [&](const auto& x, const auto& y) {
                      return std::equal(x.options.begin(), x.options.end(), y.options.begin(),
                                        y.options.end(), same_option);
                    });
}

bool is_same(const DecisionLog::Entry& a, const DecisionLog::Entry& b) {
  return a.module == b.module && a.is_backward == b.is_backward && a.op == b.op && a.argument == b.argument &&
         a.shape == b.shape && a.from == b.from && a.to == b.to && is_same(a.reason.get(), b.reason.get());
}

void add_entry(DecisionLogState& state, const DecisionLog::Entry& entry) {
  for (DecisionLog::Entry& known : state.entries) {
    if (is_same(known, entry)) {
      ++known.count;
      return;
    }
  }
  state.entries.push_back(entry);
}

void enter_call(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
                MeshImpl& mesh) {
  logs().calls.push_back({&info, &operands, arguments, &mesh, nullptr});
}
void leave_call() { logs().calls.pop_back(); }
constexpr CallRecorder kCallRecorder{&enter_call, &leave_call};

void record_move_in_logs(const at::Tensor& local, const Shape& shape, const Layout& from, const Layout& to,
                         const Plan& plan) {
  ActiveLogs& active = logs();
  if (active.states.empty()) return;
  DecisionLog::Entry entry;
  const RunningModules running = running_modules();
  if (!running.paths.empty()) entry.module = running.paths.back();
  entry.is_backward = running.is_backward;
  entry.shape = shape;
  entry.from = from.placements;
  entry.to = to.placements;
  entry.count = 1;
  describe_steps(plan, *from.mesh, entry);
  if (!active.calls.empty()) {
    Call& call = active.calls.back();
    if (const Operand* operand = operand_with(call, local)) {
      entry.op = call.info->name;
      entry.argument = call.info->arguments[operand->argument].name;
      if (!call.is_explained) call.reason = reason_of(call);
      call.is_explained = true;
      entry.reason = call.reason;
    }
  }
  for (const auto& state : active.states) add_entry(*state, entry);
}

// The logs of all ranks of this process.
std::mutex count_mutex;
int count_of_logs = 0;

void count_logs(int change) {
  const std::scoped_lock lock(count_mutex);
  count_of_logs += change;
  call_recorder = count_of_logs > 0 ? &kCallRecorder : nullptr;
  move_recorder = count_of_logs > 0 ? &record_move_in_logs : nullptr;
}

void end_log(const std::shared_ptr<DecisionLogState>& state) {
  if (std::erase(logs().states, state) == 0) return;
  count_logs(-1);
  watch_modules(false);
}

// The chosen option of the axis on which it moves data, and the cheapest of the others.
std::string choice_text(const Reason& reason) {
  std::string text;
  for (const DecisionLog::AxisOptions& axis : reason.axes) {
    const DecisionLog::Option *chosen = nullptr, *next = nullptr;
    for (const DecisionLog::Option& option : axis.options) {
      if (option.is_chosen)
        chosen = &option;
      else if (next == nullptr ||
               std::pair(option.communicates, option.seconds) < std::pair(next->communicates, next->seconds))
        next = &option;
    }
    if (chosen == nullptr || !chosen->communicates) continue;
    text += "    on " + axis.axis + " " + chosen->option + " for " + time_text(chosen->seconds);
    if (next != nullptr) text += "; next best " + next->option + " for " + time_text(next->seconds);
    text += "\n";
  }
  return text;
}

}  // namespace

DecisionLog::DecisionLog() : state_(std::make_shared<DecisionLogState>()) {
  logs().states.push_back(state_);
  count_logs(1);
  watch_modules(true);
}
DecisionLog::~DecisionLog() { end_log(state_); }
void DecisionLog::stop() { end_log(state_); }
const std::vector<DecisionLog::Entry>& DecisionLog::entries() const { return state_->entries; }

std::string DecisionLog::table() const {
  std::string text;
  for (const Entry& entry : entries()) {
    if (entry.bytes_sent == 0) continue;
    text += (entry.op.empty() ? "redistribute" : entry.op) +
            (entry.argument.empty() ? "" : " " + entry.argument) + " " + shape_text(entry.shape) + " " +
            to_string(entry.from) + " -> " + to_string(entry.to) + "  " + std::to_string(entry.count) +
            " x " + bytes_text(entry.bytes_sent) + "  " +
            (entry.module.empty() ? "outside of modules" : entry.module) +
            (entry.is_backward ? ", backward" : ", forward") + "\n";
    if (entry.reason) text += choice_text(*entry.reason);
  }
  return text.empty() ? "nothing was sent\n" : text;
}

}  // namespace meshtorch
