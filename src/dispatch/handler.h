// One operator call on distributed tensors, from the arguments on the stack to the results.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>

#include "operator/decision.h"
#include "operator/operand.h"

namespace meshtorch::internal {

class Handler {
 public:
  // What a caller found out already.
  struct LookedUp {
    CallKey key;
    std::shared_ptr<const Decision> decision;  // null: there is none yet
  };

  Handler(const OperatorInfo& info, torch::jit::Stack& stack, LookedUp* looked_up = nullptr);

  // The path of one call: its handling, and by rule: decide, redistribute, run locally, wrap.
  void run();
  // By the operator's rule, or replicated if it has none, whatever its handling.
  void run_rule();

 private:
  void dispatch();
  using LocalTensors = c10::SmallVector<at::Tensor, 6>;

  void run_by_rule();
  void refuse() const;
  void collect_operands();
  void collect(const at::Tensor& tensor, std::size_t argument, int element);
  // Throws if the operands lie on several meshes.
  void check_meshes() const;
  void check_plain_operands();
  void change_shape();
  // Whether the call writes to a plain tensor of more than one element.
  bool writes_plain() const;
  // Whether the call writes to a tensor that is still open to lie as the other operands do.
  bool writes_before_layout() const;
  void adopt_result_layout();
  CallKey key() const;
  void run_locally(const Decision& decision, bool is_first = false);
  // A call on the parts failed. Where they differ, the other ranks may not know.
  void tell_failure(const Decision& decision) const;
  LocalTensors localize_arguments(const Decision& decision);
  std::function<at::Tensor(const at::Tensor&)> scaling_in_place() const;
  void restore_written(const Decision& decision, const LocalTensors& locals);
  // What was written to views that are copies goes to what they were taken of.
  void carry_back() const;
  bool is_sure_to_share_memory(const Decision& decision) const;
  void wrap_results(const Decision& decision, const torch::jit::Stack& arguments);
  const at::Tensor& written_operand(int argument_index) const;
  torch::jit::Stack copy_of_arguments() const;

  const OperatorInfo& info_;
  torch::jit::Stack& stack_;
  const std::size_t base_;  // where the arguments begin
  Operands operands_;
  LookedUp* const looked_up_;
  MeshImpl* mesh_ = nullptr;
  std::optional<std::size_t> other_mesh_;  // the first operand that lies on another one
  AssumedShapePtr assumed_;                // of the operands: see DTensorMeta
};

// Runs the call on the stack by its rule: what decompositions come back to.
void run_rule(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Decides how a call runs; the results' sizes and strides are left open. (decide.cc)
std::shared_ptr<Decision> decide(const OperatorInfo& info, const Operands& operands,
                                 c10::ArrayRef<c10::IValue> arguments, MeshImpl& mesh);
// Fills in the results' sizes and strides from the local results. (decide.cc)
void complete(Decision& decision, MeshImpl& mesh, const std::vector<at::Tensor>& local_results, bool is_view);
// The plan of result tensor number `index`, whose sizes only the local result tells. (decide.cc)
ResultPlan measured_plan(const Decision& decision, MeshImpl& mesh, std::size_t index,
                         const at::Tensor& local);

}  // namespace meshtorch::internal
