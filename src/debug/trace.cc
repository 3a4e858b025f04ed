// TraceMode: a thread-local observer of LibTorch's dispatcher that keeps what it sees.
#include "meshtorch/trace.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

#include "debug/report/timeline.h"
#include "debug/running_modules.h"
#include "debug/trace_events.h"
#include "meshtorch/collectives.h"
#include "meshtorch/process_group.h"
#include "runtime/host_tensor.h"

namespace meshtorch {
using namespace internal;

// Backward may run on threads of its own, which share the rank's modes.
struct internal::TraceState {
  mutable std::mutex mutex;
  std::vector<TraceEvent> events;
  std::vector<std::thread::id> threads;

  void add(TraceEvent event) {
    const std::lock_guard lock(mutex);
    const auto found = std::find(threads.begin(), threads.end(), std::this_thread::get_id());
    event.thread = static_cast<int>(found - threads.begin());
    if (found == threads.end()) threads.push_back(std::this_thread::get_id());
    events.push_back(std::move(event));
  }
};

namespace {

using Clock = std::chrono::steady_clock;

struct ActiveTraces {
  std::vector<std::shared_ptr<TraceState>> states;
  at::CallbackHandle observer = 0;
};

ActiveTraces& active_traces() { return c10d::RankLocal<ActiveTraces>::get(); }

// Durations come from the steady clock, their place in time from the machine's, read once.
double microseconds_since_1970(Clock::time_point time) {
  static const auto offset =
      std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(time.time_since_epoch() + offset).count();
}

void append_shape(const at::Tensor& tensor, std::string& text) {
  if (!tensor.defined()) return;
  text += text.empty() ? "" : ", ";
  text += c10::str(tensor.sizes());
}

std::string shapes_of(c10::ArrayRef<const c10::IValue> inputs) {
  std::string text;
  for (const c10::IValue& value : inputs) {
    if (value.isTensor()) append_shape(value.toTensor(), text);
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) append_shape(tensor, text);
  }
  return text;
}

// The name of the group that a collective is called on; empty for other operators.
std::string group_of(const at::RecordFunction& fn) {
  if (!std::string_view(fn.name()).starts_with("c10d::")) return {};
  for (const c10::IValue& value : fn.inputs()) {
    if (value.isCustomClass() &&
        value.type() == c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>())
      return value.toCustomClass<c10d::ProcessGroup>()->getGroupName();
  }
  return {};
}

struct TracedCall : at::ObserverContext {
  std::string shapes;
  std::string group;
  Clock::time_point begin;
};

std::unique_ptr<at::ObserverContext> start_event(const at::RecordFunction& fn) {
  auto context = std::make_unique<TracedCall>();
  context->shapes = shapes_of(fn.inputs());
  context->group = group_of(fn);
  context->begin = Clock::now();
  return context;
}

TraceEvent::Kind kind_of(const at::RecordFunction& fn) {
  const std::string_view name = fn.name();
  if (is_communication(name))
    return name.starts_with("c10d::") ? TraceEvent::Kind::collective : TraceEvent::Kind::wait;
  if (fn.scope() == at::RecordScope::USER_SCOPE) return TraceEvent::Kind::scope;
  return fn.scope() == at::RecordScope::BACKWARD_FUNCTION ? TraceEvent::Kind::backward
                                                          : TraceEvent::Kind::call;
}

void end_event(const at::RecordFunction& fn, at::ObserverContext* context) {
  const Clock::time_point end = Clock::now();
  const auto* call = static_cast<TracedCall*>(context);
  if (call == nullptr) return;
  TraceEvent event;
  event.name = fn.name();
  event.kind = kind_of(fn);
  event.module = innermost_module();
  event.shapes = call->shapes;
  event.group = call->group;
  event.begin = microseconds_since_1970(call->begin);
  event.duration = std::chrono::duration<double, std::micro>(end - call->begin).count();
  for (const auto& state : active_traces().states) state->add(event);
}

void activate(const std::shared_ptr<TraceState>& state) {
  ActiveTraces& traces = active_traces();
  if (traces.states.empty()) {
    traces.observer =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&start_event, &end_event)
                                       .needsInputs(true)
                                       .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                                at::RecordScope::USER_SCOPE}));
    watch_modules(true);
  }
  traces.states.push_back(state);
}

void deactivate(const std::shared_ptr<TraceState>& state) {
  ActiveTraces& traces = active_traces();
  if (std::erase(traces.states, state) == 0 || !traces.states.empty()) return;
  at::removeCallback(traces.observer);
  watch_modules(false);
}

// All ranks' texts, on every rank.
std::vector<std::string> gather_texts(const std::string& text) {
  const auto size = static_cast<std::int64_t>(text.size());
  const at::Tensor sizes = wait_tensor(all_gather_tensor(at::full({1}, size, on_host(at::kLong)), 0, {}));
  const Splits splits(sizes.const_data_ptr<std::int64_t>(),
                      sizes.const_data_ptr<std::int64_t>() + sizes.numel());
  at::Tensor bytes = at::empty({size}, on_host(at::kByte));
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = wait_tensor(all_gather_tensor(bytes, 0, {}, splits));
  const char* next = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> texts;
  for (const std::int64_t length : splits) {
    texts.emplace_back(next, static_cast<std::size_t>(length));
    next += length;
  }
  return texts;
}

}  // namespace

TraceMode::TraceMode() : state_(std::make_shared<TraceState>()) { activate(state_); }
TraceMode::~TraceMode() { deactivate(state_); }
void TraceMode::stop() { deactivate(state_); }

std::size_t TraceMode::size() const {
  const std::lock_guard lock(state_->mutex);
  return state_->events.size();
}

std::string TraceMode::json() const {
  const std::lock_guard lock(state_->mutex);
  return trace_file({trace_objects(state_->events, get_rank())});
}

std::vector<std::string> TraceMode::gather() {
  stop();
  return gather_texts(report::internal::trace_text(state_->events, get_rank()));
}

void TraceMode::save(const std::string& file) {
  stop();
  const std::vector<std::string> texts = gather_texts(trace_objects(state_->events, get_rank()));
  at::Tensor is_written = at::zeros({1}, on_host(at::kByte));
  if (get_rank() == 0) {
    std::ofstream out(file, std::ios::binary);
    out << trace_file(texts);
    out.close();
    is_written.fill_(!out.fail());
  }
  TORCH_CHECK_VALUE(
      wait_tensor(broadcast(is_written, 0, {})).item<bool>(), "meshtorch: the trace cannot be written to ",
      file,
      "\n  in: TraceMode::save, on rank 0\n  do: name a file in a folder that exists and can be written");
}

}  // namespace meshtorch
