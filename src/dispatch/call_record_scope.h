// Tells the decision logs that are active on this rank which operator call moves its operands.
#pragma once

#include <atomic>

#include "operator/operand.h"
#include "operator/operator.h"

namespace meshtorch::internal {

// Who keeps the calls whose operands move.
struct CallRecorder {
  void (*enter)(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
                MeshImpl& mesh);
  void (*leave)();
};
// Set while a rank of this process has a decision log.
inline std::atomic<const CallRecorder*> call_recorder = nullptr;

// While it lives, redistributions of these operands belong to this call. The arguments are still the call's
// own when the first of them is moved.
class CallRecordScope {
 public:
  CallRecordScope(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
                  MeshImpl& mesh)
      : recorder_(call_recorder.load(std::memory_order_relaxed)) {
    if (recorder_ != nullptr) recorder_->enter(info, operands, arguments, mesh);
  }
  ~CallRecordScope() {
    if (recorder_ != nullptr) recorder_->leave();
  }
  CallRecordScope(const CallRecordScope&) = delete;
  CallRecordScope& operator=(const CallRecordScope&) = delete;

 private:
  const CallRecorder* recorder_;
};

}  // namespace meshtorch::internal
