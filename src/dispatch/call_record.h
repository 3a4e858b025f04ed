// Tells the decision logs that are active on this rank which operator call moves its operands.
#pragma once

#include "operator/operand.h"
#include "operator/operator.h"
#include "tensor/move_record.h"

namespace meshtorch::internal {

// While it lives, redistributions of these operands belong to this call. The arguments are still the call's
// own when the first of them is moved.
class RecordedCall {
 public:
  RecordedCall(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
               MeshImpl& mesh)
      : is_recorded_(active_decision_logs.load(std::memory_order_relaxed) > 0) {
    if (is_recorded_) enter(info, operands, arguments, mesh);
  }
  ~RecordedCall() {
    if (is_recorded_) leave();
  }
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

 private:
  static void enter(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
                    MeshImpl& mesh);
  static void leave();
  bool is_recorded_;
};

}  // namespace meshtorch::internal
