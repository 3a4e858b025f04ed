// Functions that run before and after a module's forward and may change what goes in and out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {

// The arguments or the results of one call of forward, whatever their types. Tensors inside tuples, vectors,
// optionals and structs are values of their own; anything without tensors in it is one value.
class MESHTORCH_API Values {
 public:
  std::size_t size() const { return entries_.size(); }
  bool is_tensor(std::size_t index) const { return entry(index).tensor != nullptr; }
  // The tensor, to read or to replace. Throws ValueError if the value is none.
  at::Tensor& operator[](std::size_t index) const;
  // As declared on the module; empty if not declared.
  std::string_view name(std::size_t index) const { return entry(index).name; }
  // The first value of the argument with this name.
  std::optional<std::size_t> find(std::string_view name) const;

  void add(std::string_view name, at::Tensor* tensor) { entries_.push_back({name, tensor}); }

 private:
  struct Entry {
    std::string_view name;
    at::Tensor* tensor;  // null: not a tensor
  };
  const Entry& entry(std::size_t index) const;
  std::vector<Entry> entries_;
};

// Implemented by modules whose forward runs hooks: those of meshtorch::nn and those declared with
// MESHTORCH_MODULE.
class MESHTORCH_API Hookable {
 public:
  using PreHook = std::function<void(torch::nn::Module& module, Values& inputs)>;
  using Hook = std::function<void(torch::nn::Module& module, Values& outputs)>;
  using HookId = std::uint64_t;

  virtual ~Hookable() = default;

  // Hooks run in the order in which they were added.
  HookId register_forward_pre_hook(PreHook hook);
  HookId register_forward_hook(Hook hook);
  void remove_hook(HookId id);

  // The names of forward's arguments, as the module declares them.
  virtual std::vector<std::string_view> argument_names() const = 0;

  // Set by distribute_module.
  bool is_distributed = false;

 protected:
  bool has_hooks() const { return !pre_hooks_.empty() || !hooks_.empty(); }
  void run_pre_hooks(torch::nn::Module& module, Values& inputs) const;
  void run_hooks(torch::nn::Module& module, Values& outputs) const;
  // Takes the hooks of the modules below `from` over to those below `to`, which is its clone.
  static void copy_hooks_below(const torch::nn::Module& from, torch::nn::Module& to);
  static void check_can_be_saved(const torch::nn::Module& module);

 private:
  std::vector<std::pair<HookId, PreHook>> pre_hooks_;
  std::vector<std::pair<HookId, Hook>> hooks_;
  HookId last_id_ = 0;
};

}  // namespace meshtorch
