// The calls of collectives on tensors, the same on every backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

#include "comm/group_call.h"
#include "meshtorch/placement.h"

namespace meshtorch::internal {

// They refer to their arguments, which must outlive them.

class AllReduceCall : public GroupCall {
 public:
  AllReduceCall(at::TensorList inputs, ReduceOp op);

 private:
  std::string arguments() const override;
  at::TensorList inputs_;
  ReduceOp op_;
};

// Rank r has sizes[r] along `dim`; all have equal shares of several inputs.
class AllGatherCall : public GroupCall {
 public:
  AllGatherCall(at::TensorList inputs, std::int64_t dim, at::IntArrayRef sizes);

 private:
  std::string arguments() const override;
  at::TensorList inputs_;
  std::int64_t dim_;
  at::IntArrayRef sizes_;
};

class ReduceScatterCall : public GroupCall {
 public:
  ReduceScatterCall(at::TensorList inputs, at::IntArrayRef dims, ReduceOp op);

 private:
  std::string arguments() const override;
  at::TensorList inputs_;
  at::IntArrayRef dims_;
  ReduceOp op_;
};

// Rows of dim 0.
class AllToAllCall : public GroupCall {
 public:
  AllToAllCall(const at::Tensor& input, at::IntArrayRef receives, at::IntArrayRef sends);

 private:
  std::string arguments() const override;
  const at::Tensor& input_;
  CallSplits rows_;
};

class BroadcastCall : public GroupCall {
 public:
  BroadcastCall(const at::Tensor& tensor, int root);

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
class OtherCall : public GroupCall {
 public:
  OtherCall(CallKind kind, const OtherArguments& arguments);

 private:
  std::string arguments() const override;
  OtherArguments arguments_;
};

// "Float[2, 3]"
std::string describe(const at::Tensor& t);
std::string describe(at::TensorList tensors);

}  // namespace meshtorch::internal
