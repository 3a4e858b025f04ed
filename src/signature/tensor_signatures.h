// The calls of collectives on tensors, the same on every backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

#include "meshtorch/placement.h"
#include "signature/collective_signature.h"

namespace meshtorch::internal {

// They refer to their arguments, which must outlive them.

class AllReduceSignature : public CollectiveSignature {
 public:
  AllReduceSignature(at::TensorList inputs, ReduceOp op);

 private:
  std::string arguments() const override;
  at::TensorList inputs_;
  ReduceOp op_;
};

// Rank r has sizes[r] along `dim`; all have equal shares of several inputs.
class AllGatherSignature : public CollectiveSignature {
 public:
  AllGatherSignature(at::TensorList inputs, std::int64_t dim, at::IntArrayRef sizes);

 private:
  std::string arguments() const override;
  at::TensorList inputs_;
  std::int64_t dim_;
  at::IntArrayRef sizes_;
};

class ReduceScatterSignature : public CollectiveSignature {
 public:
  ReduceScatterSignature(at::TensorList inputs, at::IntArrayRef dims, ReduceOp op);

 private:
  std::string arguments() const override;
  at::TensorList inputs_;
  at::IntArrayRef dims_;
  ReduceOp op_;
};

// Rows of dim 0.
class AllToAllSignature : public CollectiveSignature {
 public:
  AllToAllSignature(const at::Tensor& input, at::IntArrayRef receives, at::IntArrayRef sends);

 private:
  std::string arguments() const override;
  const at::Tensor& input_;
  CallSplits rows_;
};

class BroadcastSignature : public CollectiveSignature {
 public:
  BroadcastSignature(const at::Tensor& tensor, int root);

 private:
  std::string arguments() const override;
  const at::Tensor& tensor_;
  int root_;
};

// Calls of c10d's that meshtorch itself does not make: tensors that agree in type and shape, some of them in
// type only, and a reduction and a root where there are any.
struct OtherArguments {
  at::TensorList alike = {};
  at::TensorList of_type = {};
  int op = -1;
  int root = -1;
  const CallSplits* splits = nullptr;
};
class OtherSignature : public CollectiveSignature {
 public:
  OtherSignature(CallKind kind, const OtherArguments& arguments);

 private:
  std::string arguments() const override;
  OtherArguments arguments_;
};

// "Float[2, 3]"
std::string describe(const at::Tensor& t);
std::string describe(at::TensorList tensors);

// What ranks agree on: the wholes, and along which dims they are cut.
class GatherChunksSignature : public CollectiveSignature {
 public:
  GatherChunksSignature(at::TensorList wholes, at::IntArrayRef dims);

 private:
  std::string arguments() const override;
  at::TensorList wholes_;
  at::IntArrayRef dims_;
};

// Adds placements to what ranks compare, in a form that does not depend on how the program was compiled.
void add_placements(CallHash& hash, const Placements& placements);

}  // namespace meshtorch::internal
