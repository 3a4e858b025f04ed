// KeptMemory and PeakMemory: a thread-local observer of operators, and one of LibTorch's allocator.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "backends/pending.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/memory.h"

namespace meshtorch {
using namespace internal;
namespace {

// Weak, so that nothing is kept alive by being watched, and no address is used twice while it is.
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using Storages = std::unordered_map<const c10::StorageImpl*, WeakStorage>;

}  // namespace

struct internal::KeptMemoryState {
  std::mutex mutex;   // backward may run on threads of its own
  Storages made;      // by operators that were watched
  Storages existing;  // those that were there before
};

namespace {

struct ActiveWatches {
  std::vector<std::shared_ptr<KeptMemoryState>> states;
  at::CallbackHandle observer = 0;
};

ActiveWatches& watches() { return c10d::RankLocal<ActiveWatches>::get(); }

// A tensor whose collective still runs is left alone: to look at its memory is to wait for it. The memory was
// seen when it was made.
template <class Visit>
void visit_storages(const c10::IValue& value, const Visit& visit) {
  const auto visit_tensor = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !is_dtensor(tensor) && !is_pending_tensor(tensor) && tensor.has_storage())
      visit(tensor.storage().getWeakStorageImpl(), tensor.storage().unsafeGetStorageImpl());
  };
  if (value.isTensor()) {
    visit_tensor(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit_tensor(tensor);
  }
}

std::unique_ptr<at::ObserverContext> before_call(const at::RecordFunction& fn) {
  for (const auto& state : watches().states) {
    const std::lock_guard lock(state->mutex);
    for (const c10::IValue& input : fn.inputs()) {
      visit_storages(input, [&](WeakStorage weak, const c10::StorageImpl* storage) {
        if (!state->made.contains(storage)) state->existing.emplace(storage, std::move(weak));
      });
    }
  }
  return nullptr;
}

void after_call(const at::RecordFunction& fn, at::ObserverContext*) {
  for (const auto& state : watches().states) {
    const std::lock_guard lock(state->mutex);
    for (const c10::IValue& output : fn.outputs()) {
      visit_storages(output, [&](WeakStorage weak, const c10::StorageImpl* storage) {
        if (!state->existing.contains(storage)) state->made.emplace(storage, std::move(weak));
      });
    }
  }
}

}  // namespace

KeptMemory::KeptMemory() : state_(std::make_shared<KeptMemoryState>()) {
  ActiveWatches& active = watches();
  if (active.states.empty()) {
    active.observer = at::addThreadLocalCallback(at::RecordFunctionCallback(&before_call, &after_call)
                                                     .needsInputs(true)
                                                     .needsOutputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  }
  active.states.push_back(state_);
}

KeptMemory::~KeptMemory() {
  ActiveWatches& active = watches();
  std::erase(active.states, state_);
  if (active.states.empty()) at::removeCallback(active.observer);
}

std::int64_t KeptMemory::bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::int64_t bytes = 0;
  for (const auto& [address, weak] : state_->made) {
    if (const auto storage = weak.lock()) bytes += static_cast<std::int64_t>(storage->nbytes());
  }
  return bytes;
}

// What LibTorch finds where its profiler would be: one that is off, but asks for memory.
struct PeakMemory::Meter : torch::profiler::impl::ProfilerStateBase {
  using Config = torch::profiler::impl::ProfilerConfig;
  std::atomic<std::int64_t> live = 0, peak = 0;

  Meter()
      : ProfilerStateBase(Config(torch::profiler::impl::ProfilerState::Disabled,
                                 /*report_input_shapes=*/false,
                                 /*profile_memory=*/true)) {}
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    const std::int64_t now = live += size;
    std::int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
};

struct PeakMemory::Guard {
  explicit Guard(std::shared_ptr<Meter> meter) : info(c10::DebugInfoKind::PROFILER_STATE, std::move(meter)) {}
  c10::DebugInfoGuard info;
};

PeakMemory::PeakMemory() : meter_(std::make_shared<Meter>()), guard_(std::make_unique<Guard>(meter_)) {}
PeakMemory::~PeakMemory() = default;
std::int64_t PeakMemory::bytes() const { return meter_->peak; }
void PeakMemory::restart() { meter_->peak = meter_->live.load(); }

}  // namespace meshtorch
