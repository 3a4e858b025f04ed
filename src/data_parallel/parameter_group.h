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
#include "data_parallel/group_order.h"
#include "data_parallel/reduce_terms.h"
#include "data_parallel/sharded_parameter.h"
#include "meshtorch/api.h"
#include "meshtorch/data_parallel.h"
#include "meshtorch/fully_shard.h"
#include "tensor/memory_state.h"

namespace meshtorch::internal {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::optional<std::int64_t> dim;  // that is split; nothing: replicated
  // Of the whole parameter, in the place of the type that the group's policy says.
  std::optional<at::ScalarType> whole_type = std::nullopt;
};

struct ParameterGroupOptions {
  std::string name;  // of the module, for messages
  DataMesh data;
  // Nothing: true unless it is the first to run.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  MixedPrecisionPolicy precision = {};
  std::optional<int> source = 0;
  // How many bytes of gradients are reduced together, first and later; nothing: all.
  std::optional<std::int64_t> first_bucket_bytes = std::nullopt;
  std::optional<std::int64_t> bucket_bytes = std::nullopt;
  // What happens with a parameter that got no gradient: it is left out, an error names it, it counts as zero,
  // or it counts as zero unless no rank has a gradient.
  enum class Unused : std::uint8_t { left_out, error, zero, zero_if_used } unused = Unused::left_out;
};

class MESHTORCH_FOR_PYTHON ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
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
  // which they may replace. Of several modules that make up the group, the last to end forward says so.
  bool is_new() const { return !is_root_.has_value(); }
  void become_root_of(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor*>& inputs);
  void before_forward(const std::vector<at::Tensor*>& inputs);
  // How often before_forward() was called on this thread, of any group.
  static std::uint64_t forwards_of_thread();
  void after_forward(const std::vector<at::Tensor*>& outputs, bool is_last = true);

  // Takes another object, which a module holds now, for one of its parameters: a DTensor of the same shape.
  void replace(const at::Tensor& parameter, const at::Tensor& by);

  void unshard(Form form);
  void reshard();
  bool is_unsharded() const { return form_ != Form::sharded; }
  // Starts to gather, if that is needed and not done already; unshard() finishes it, cancel_gather() lets it
  // go.
  void start_gather();
  void cancel_gather();
  // Of the whole parameters while they are there, on this rank.
  std::int64_t gathered_bytes() const;
  // Forgets a forward and backward pass that did not come to their end.
  void reset_pass();

  // What users may change; see FSDPModule.
  struct Settings {
    bool syncs = true;         // gradients are reduced
    bool syncs_copies = true;  // over the axis of copies, too
    bool reshards_after_backward = true;
    bool unshards_in_backward = true;
    bool ends_backward_by_hand = false;  // see finalize_backward
    bool sums_only = false;              // divides by itself
    std::optional<double> divisor =
        std::nullopt;  // of gradients; nothing: the number of ranks, 1 of whole batches
    std::function<void(const at::Tensor&)> on_reduced = {};
    // Groups that are gathered ahead of time; nothing: what ran next before.
    std::optional<std::vector<std::weak_ptr<ParameterGroup>>> forward_prefetch = std::nullopt;
    std::optional<std::vector<std::weak_ptr<ParameterGroup>>> backward_prefetch = std::nullopt;
  };
  Settings& settings() { return settings_; }
  void set_requires_gradient_sync(bool value) { settings_.syncs = settings_.syncs_copies = value; }
  bool requires_gradient_sync() const { return settings_.syncs; }
  void set_reshard_after_forward(ReshardAfterForward value);
  void set_counts_unused(bool value);

  // Ends a backward pass that settings().ends_backward_by_hand has left open: reduces what is left, and gives
  // gradients to the parameters.
  void finalize_backward() { after_backward(); }

  // Called when autograd has set the gradient of a parameter.
  void on_gradient(std::size_t index);
  // Waits for the reductions that were started.
  void finish_reductions();

 private:
  // Parameters whose gradients are reduced in one collective.
  struct Bucket {
    std::vector<std::size_t> members;
    std::size_t missing = 0;  // gradients in this backward
    bool is_reduced = false;
  };
  // A gathering under way.
  struct Gathering {
    std::function<void()> finish;
    std::vector<WriteCounts> writes;  // to the shards
  };

  ParameterGroup(const std::vector<NamedParameter>& parameters, ParameterGroupOptions options);
  void make_buckets();
  Form form_for(const std::vector<at::Tensor*>& inputs) const;
  at::ScalarType whole_type(const ShardedParameter& parameter) const;
  void keep_hooks();
  // "\n  of fully_shard of Net: weight, bias": those on the meta device, empty if there are none.
  std::string names_without_data() const;

  void take_memory();
  std::vector<WriteCounts> writes_to_shards() const;
  void cancel_gather_of_written();
  bool are_up_to_date() const;
  void prefetch(const std::optional<std::vector<std::weak_ptr<ParameterGroup>>>& given,
                const std::shared_ptr<ParameterGroup>& next);
  // Keeps a larger part than the shard until backward, where that is asked for.
  void keep_parts();

  void before_backward(Form form);
  void begin_backward(Form form);
  void reduce_ready_buckets();
  void reduce(Bucket& bucket);
  // Whether sums over shards are kept for a later pass, which adds them up over copies.
  bool waits_for_copies() const;
  TermReduction reduction_of(Form form);
  void after_backward();
  void reduce_the_rest();
  void settle_gradients();
  void reshard_after_backward();
  std::vector<bool> used_anywhere(const std::vector<bool>& used_here) const;
  // Forgets a backward pass that did not come to its end.
  void abandon_backward();

  ParameterGroupOptions options_;
  Settings settings_;
  std::vector<ShardedParameter> parameters_;
  std::optional<GatheredMemory> memory_;  // of the parameters that are split
  std::vector<Bucket> buckets_;
  Form form_ = Form::sharded;
  std::optional<bool> is_root_;  // unknown before the first forward
  std::shared_ptr<GroupOrder> order_;
  std::optional<Gathering> gathering_;
  Tensors kept_parts_;  // of the parameters that are split
  std::optional<Group> part_group_;

  // Of the backward pass that is going on.
  bool expects_backward_ = false;
  bool is_in_backward_ = false;
  Form backward_form_ = Form::local;
  std::vector<at::Tensor> earlier_;    // gradients that were there before, reduced
  std::vector<at::Tensor> unreduced_;  // this rank's gradients, also of passes that were not reduced
  std::vector<at::Tensor> uncopied_;   // reduced over shards and not over copies, in earlier passes
  std::vector<bool> has_gradient_;     // in this pass
  std::vector<std::function<std::vector<ReducedGradient>()>> reducing_;
  std::vector<ReducedGradient> reduced_;
};

}  // namespace meshtorch::internal
