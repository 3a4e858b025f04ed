// A call of an aten operator as a line of text, "addmm: f[6], f[5,4], f[4,6], beta=0.5": what samples are
// written in, draws are made of, and a failing case is printed as.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "ranks.h"

namespace meshtorch::testing {

// A tensor that is made from its text. The letters before the sizes say what it holds:
//   f  small numbers       p  positive ones        u  inside (-1, 1)     d  no two equal
//   q  inside (0, 1)       s  sorted along the last dim
//   m  symmetric, positive definite matrices       l  lower triangles    z  complex numbers
//   i7 indices below 7     n  whole numbers        b  truth values       t{0,2,5} these indices
// Numbers after f, n and z are the bits of an element (f32, bf16, n8, z64), by default 64 (z: 128).
struct TensorText {
  std::string kind = "f";
  int64_t number = 0;  // bits, or the bound of indices; 0: not given
  std::vector<int64_t> sizes;
  std::vector<int64_t> values;  // of t

  // The same for equal texts and seeds.
  torch::Tensor make(int64_t seed) const;
  std::string to_string() const;
  // A tensor that has the sizes and type of this one.
  static TensorText like(const torch::Tensor& tensor);
};

// One argument: none, a tensor, [a list], true, 3, 0.5, "a string" or a word (a dtype, a device).
struct Value {
  enum class Kind : std::uint8_t { standard, none, tensor, list, boolean, integer, real, string, word };
  Kind kind = Kind::standard;  // standard: the schema's default
  TensorText tensor;
  std::vector<Value> items;
  int64_t integer = 0;  // of a boolean too
  double real = 0;
  std::string text;

  std::string to_string() const;
};

struct Call {
  explicit Call(const c10::OperatorHandle& handle);
  // Throws std::invalid_argument if the text is not a call of the operator.
  static Call parse(const std::string& text);

  c10::OperatorHandle op;
  std::vector<Value> arguments;  // one for each of the schema
  int64_t data = 0;              // the tensors of another number hold other numbers

  std::string name() const;  // "add.Tensor"
  std::string to_string() const;

  // The texts of all tensors in order, those in lists one by one.
  std::vector<TensorText*> tensor_texts();
  // These tensors, made.
  std::vector<torch::Tensor> tensors() const;
  // The arguments, with other tensors in the place of those; equally many.
  torch::jit::Stack stack(const std::vector<torch::Tensor>& tensors) const;
  // For each tensor, the number of the argument that it is, or is an element of.
  std::vector<std::size_t> arguments_of_tensors() const;
};

// "add.Tensor" for aten::add.Tensor; and back, nothing if there is no such operator.
std::string name_of(const c10::OperatorName& op);
std::optional<c10::OperatorHandle> operator_named(const std::string& name);
// True if the operator writes to this argument.
bool is_written(const c10::Argument& argument);

}  // namespace meshtorch::testing
