// Parameters that are gathered together before their module runs and whose gradients are reduced together:
// what fully_shard and replicate are made of, for modules of either language.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data_parallel/data_mesh.h"
#include "data_parallel/gathered_memory.h"
#include "data_parallel/reduce_terms.h"
#include "data_parallel/sharded_parameter.h"
#include "meshtorch/data_parallel.h"

namespace meshtorch {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::optional<std::int64_t> dim;  // that is split; nothing: replicated
};

struct ParameterGroupOptions {
  std::string name;  // of the module, for messages
  DataMesh data;
  std::optional<bool> reshard_after_forward = std::nullopt;  // nothing: unless it is the first to run
  MixedPrecisionPolicy precision = {};
  std::optional<int> source = 0;
  // How many bytes of gradients are reduced together, first and later; nothing: all.
  std::optional<std::int64_t> first_bucket_bytes = std::nullopt;
  std::optional<std::int64_t> bucket_bytes = std::nullopt;
  // What happens with a parameter that got no gradient: it is left out, an error names it, or it counts as
  // zero.
  enum class Unused : std::uint8_t { left_out, error, zero } unused = Unused::left_out;
};

class ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
 public:
  static std::shared_ptr<ParameterGroup> make(const std::vector<NamedParameter>& parameters,
                                              ParameterGroupOptions options);
  ~ParameterGroup();
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  // The group that a parameter belongs to, null if to none; and those of several, each once, in order.
  static std::shared_ptr<ParameterGroup> of(const at::Tensor& parameter);
  static std::vector<std::shared_ptr<ParameterGroup>> of(const std::vector<at::Tensor>& parameters);

  // What the hooks of the module call: whether it is the first time, if so with all parameters of the module
  // and of those below it, whose groups do not run first then; and with the tensors that go in and come out,
  // which they may replace.
  bool is_new() const { return !is_root_.has_value(); }
  void become_root_of(const std::vector<at::Tensor>& parameters);
  void before_forward(const std::vector<at::Tensor*>& inputs);
  void after_forward(const std::vector<at::Tensor*>& outputs);

  void unshard(Form form);
  void reshard();
  bool is_unsharded() const { return form_ != Form::sharded; }

  void set_requires_gradient_sync(bool value) { syncs_ = value; }
  bool requires_gradient_sync() const { return syncs_; }
  void set_reshard_after_forward(bool value) { options_.reshard_after_forward = value; }

  // Called when autograd has set the gradient of a parameter.
  void on_gradient(std::size_t index);

 private:
  // Parameters whose gradients are reduced in one collective.
  struct Bucket {
    std::vector<std::size_t> members;
    std::size_t missing = 0;  // gradients in this backward
    bool is_reduced = false;
  };

  ParameterGroup(const std::vector<NamedParameter>& parameters, ParameterGroupOptions options);
  void make_buckets();
  Form form_for(const std::vector<at::Tensor*>& inputs) const;
  at::ScalarType whole_type(const at::Tensor& parameter) const;

  void take_memory();
  void before_backward(Form form);
  void begin_backward();
  void reduce_ready_buckets();
  void reduce(Bucket& bucket);
  void after_backward();
  void reduce_the_rest();
  void settle_gradients();
  std::vector<bool> used_anywhere(const std::vector<bool>& used_here) const;
  // Forgets a backward pass that did not come to its end.
  void abandon_backward();

  ParameterGroupOptions options_;
  std::vector<ShardedParameter> parameters_;
  std::optional<GatheredMemory> memory_;  // of the parameters that are split
  std::vector<Bucket> buckets_;
  Form form_ = Form::sharded;
  bool syncs_ = true;
  std::optional<bool> is_root_;  // unknown before the first forward

  // Of the backward pass that is going on.
  bool is_in_backward_ = false;
  Form backward_form_ = Form::local;
  std::vector<at::Tensor> earlier_;    // gradients that were there before, reduced
  std::vector<at::Tensor> unreduced_;  // this rank's gradients, also of passes that were not reduced
  std::vector<bool> has_gradient_;     // in this pass
  std::vector<ReducedGradient> reduced_;
};

}  // namespace meshtorch
