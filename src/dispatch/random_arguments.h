// The arguments of a random operator by name, checked, and the distribution that they ask for.
#pragma once

#include "core/distribution.h"
#include "dispatch/handler.h"

namespace meshtorch {

class RandomArguments {
 public:
  // Refuses a call with a generator of the user's.
  explicit RandomArguments(Handler& call);

  std::size_t index(std::string_view name) const;
  double number(std::string_view name) const { return value(name).toScalar().toDouble(); }
  bool flag(std::string_view name) const { return value(name).toBool(); }
  bool is_tensor(std::string_view name) const { return value(name).isTensor(); }
  at::Tensor tensor(std::string_view name) const { return value(name).toTensor(); }
  // None if the operator has no such argument, or the call does not give it.
  std::optional<at::ScalarType> type(std::string_view name) const;
  std::optional<at::Device> device(std::string_view name) const;

  // In [0, 1].
  double probability(std::string_view name) const;
  // Not negative.
  double deviation() const;
  Distribution standard_normal(at::ScalarType type) const;
  // What the operator draws for a tensor of this type.
  Distribution distribution(at::ScalarType type) const;

 private:
  std::optional<std::size_t> find(std::string_view name) const;
  const c10::IValue& value(std::string_view name) const { return call_.argument(index(name)); }
  bool has(std::string_view name) const;
  void check(bool is_right, std::string_view name, const char* should) const;
  void check_floating(at::ScalarType type) const;
  Distribution integers(at::ScalarType type) const;
  Distribution integers_below() const;

  Handler& call_;
};

}  // namespace meshtorch
