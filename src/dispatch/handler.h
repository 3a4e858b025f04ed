// One operator call on distributed tensors, from the arguments on the stack to the results.
#pragma once

#include <ATen/core/stack.h>

#include <memory>

#include "operator/decision.h"
#include "operator/operand.h"

namespace meshtorch {

class Handler {
 public:
  Handler(const OperatorInfo& info, torch::jit::Stack& stack);

  // The path of one call: decide, redistribute, run locally, wrap.
  void run();

  const OperatorInfo& info() const { return info_; }
  c10::IValue& argument(std::size_t index) { return stack_[base_ + index]; }
  const Operands& operands() const { return operands_; }
  MeshImpl& mesh() const { return *mesh_; }

  // Runs the call by its rule, or replicated if it has none.
  void run_by_rule();
  // Takes the arguments off the stack and puts a result on it.
  void finish(c10::IValue result);
  void finish(std::initializer_list<at::Tensor> results);
  // The same with the arguments that the operator returns, or nothing.
  void finish_written();
  // Runs the same operator with the arguments as they are now, and gives its one result.
  at::Tensor call_again() const;

 private:
  using LocalTensors = c10::SmallVector<at::Tensor, 6>;

  void collect_operands();
  void collect(const at::Tensor& tensor, std::size_t argument, int element);
  void check_plain_operands();
  void decompose();
  void change_shape();
  CallKey key() const;
  void run_locally(const Decision& decision);
  LocalTensors localize_arguments(const Decision& decision);
  void restore_written(const Decision& decision, const LocalTensors& locals);
  bool is_sure_to_share_memory(const Decision& decision) const;
  void wrap_results(const Decision& decision, const torch::jit::Stack& arguments);
  const at::Tensor& written_operand(int argument_index) const;
  torch::jit::Stack copy_of_arguments() const;

  const OperatorInfo& info_;
  torch::jit::Stack& stack_;
  const std::size_t base_;  // where the arguments begin
  Operands operands_;
  MeshImpl* mesh_ = nullptr;
  AssumedShapePtr assumed_;  // of the operands: see DTensorMeta
};

// Decides how a call runs; the results' sizes and strides are left open. (decide.cc)
std::shared_ptr<Decision> decide(const OperatorInfo& info, const Operands& operands,
                                 c10::ArrayRef<c10::IValue> arguments, MeshImpl& mesh);
// Fills in the results' sizes and strides from the local results. (decide.cc)
void complete(Decision& decision, MeshImpl& mesh, const std::vector<at::Tensor>& local_results);

}  // namespace meshtorch
