// Whether a plain tensor may meet a distributed one.
#pragma once

#include <vector>

#include "operator/operand.h"

namespace meshtorch::internal {

// While it lives, on this thread, a composite operator is running: plain tensors that it makes inside are
// equal on all ranks.
class InsideComposite {
 public:
  InsideComposite();
  ~InsideComposite();
  InsideComposite(const InsideComposite&) = delete;
  InsideComposite& operator=(const InsideComposite&) = delete;

  static bool is_any();
};

// While it lives, on this thread, the outermost composite operator runs that was given these tensors.
class CompositeArguments {
 public:
  explicit CompositeArguments(const std::vector<at::Tensor>& tensors);
  ~CompositeArguments();
  CompositeArguments(const CompositeArguments&) = delete;
  CompositeArguments& operator=(const CompositeArguments&) = delete;

  // Whether the running operator made the tensor, and no view of it: nobody but the operator knows how it
  // lies.
  static bool has_made(const at::Tensor& tensor);

 private:
  const std::vector<at::Tensor>* outer_;
};

// True while a loss_parallel scope lives on this thread.
bool is_loss_parallel();

// True of a tensor of one element, also where it stands for many: the tangent of zeros that forward formulas
// make. One number stands in the program, which is the same on every rank.
bool is_one_number(const at::Tensor& t);

// Passes if the plain operand is replicated by construction (made inside a composite operator or a backward
// formula), is a target of a loss, or weights of its classes, in a loss_parallel scope, or the user asked for
// implicit replication. Else throws an error that names the operator, the argument and the ways out.
void check_mixing(const OperatorInfo& info, const Operand& operand);

}  // namespace meshtorch::internal
