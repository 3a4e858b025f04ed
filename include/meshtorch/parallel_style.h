// How one module is made parallel: its parameters split, its inputs and outputs converted at its edge.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/placement.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {

// The layouts of several inputs or outputs, in order; nullopt leaves one as it is. One placement stands for a
// list of one. Default: not given at all.
class Layouts {
 public:
  Layouts() = default;
  Layouts(const Placement& one) : layouts_(std::in_place, 1, one) {}
  Layouts(std::initializer_list<std::optional<Placement>> layouts) : layouts_(layouts) {}
  explicit Layouts(std::vector<std::optional<Placement>> layouts) : layouts_(std::move(layouts)) {}

  bool is_given() const { return layouts_.has_value(); }
  std::size_t size() const { return layouts_ ? layouts_->size() : 0; }
  const std::optional<Placement>& operator[](std::size_t index) const { return layouts_->at(index); }

  friend bool operator==(const Layouts&, const Layouts&) = default;

 private:
  std::optional<std::vector<std::optional<Placement>>> layouts_;
};
// Layouts of arguments by the names that the module declares.
using NamedLayouts = std::map<std::string, Placement>;

// What a style needs to know of where it is applied.
struct StyleContext {
  std::string module_name = {};  // in messages
  std::optional<int> src_data_rank = 0;
};

// A user's own style derives from this. The mesh has one axis.
class MESHTORCH_API ParallelStyle {
 public:
  using Attribute = std::variant<bool, std::int64_t, Layouts, NamedLayouts>;

  virtual ~ParallelStyle() = default;
  virtual void apply(torch::nn::Module& module, const DeviceMesh& mesh,
                     const StyleContext& context) const = 0;
  // The name and the options, in words and in files.
  virtual std::string name() const = 0;
  virtual std::vector<std::pair<std::string, Attribute>> attributes() const { return {}; }

  // "ColwiseParallel(output_layouts=S(1), use_local_output=true)": what was given, and the flags.
  std::string to_string() const;
};

// Layouts at the edge of a module of ColwiseParallel.
struct ColwiseOptions {
  std::optional<Placement> input_layouts = std::nullopt;  // default: Replicate()
  std::optional<Placement> output_layouts =
      std::nullopt;  // default: Shard(-1), for a convolution its channels
  bool use_local_output = true;
};
// Splits the outputs of a Linear, Embedding or convolution.
class MESHTORCH_API ColwiseParallel : public ParallelStyle {
 public:
  explicit ColwiseParallel(ColwiseOptions options = {}) : options_(options) {}
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "ColwiseParallel"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const ColwiseOptions& options() const { return options_; }

 private:
  ColwiseOptions options_;
};

// Layouts at the edge of a module of RowwiseParallel.
struct RowwiseOptions {
  std::optional<Placement> input_layouts =
      std::nullopt;  // default: Shard(-1), for a convolution its channels
  std::optional<Placement> output_layouts = std::nullopt;  // default: Replicate()
  bool use_local_output = true;
};
// Splits the inputs of a Linear, Embedding or convolution. The input's split size is known from the weight,
// so that shards of unequal size need no communication.
class MESHTORCH_API RowwiseParallel : public ParallelStyle {
 public:
  explicit RowwiseParallel(RowwiseOptions options = {}) : options_(options) {}
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "RowwiseParallel"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const RowwiseOptions& options() const { return options_; }

 private:
  RowwiseOptions options_;
};

// The dim that SequenceParallel expects its inputs to be split along.
struct SequenceOptions {
  std::int64_t sequence_dim = 1;
  bool use_local_output = false;
};
// Runs a module whose parameters are replicated on inputs that are split along the sequence.
class MESHTORCH_API SequenceParallel : public ParallelStyle {
 public:
  explicit SequenceParallel(SequenceOptions options = {}) : options_(options) {}
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "SequenceParallel"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const SequenceOptions& options() const { return options_; }

 private:
  SequenceOptions options_;
};

// Layouts at the edge of a module of NoParallel.
struct NoParallelOptions {
  std::optional<Placement> input_layout = std::nullopt;   // default: Replicate()
  std::optional<Placement> output_layout = std::nullopt;  // default: Replicate()
  bool use_local_output = true;
};
// Runs a module whole on every rank, between modules that are parallel.
class MESHTORCH_API NoParallel : public ParallelStyle {
 public:
  explicit NoParallel(NoParallelOptions options = {}) : options_(options) {}
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "NoParallel"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const NoParallelOptions& options() const { return options_; }

 private:
  NoParallelOptions options_;
};

// Layouts of the inputs of a module, as they come and as forward wants them.
struct PrepareInputOptions {
  Layouts input_layouts = {};
  Layouts desired_input_layouts = {};
  NamedLayouts input_kwarg_layouts = {};
  NamedLayouts desired_input_kwarg_layouts = {};
  bool use_local_output = false;
};
// Makes inputs distributed as input_layouts say, and brings them to desired_input_layouts.
class MESHTORCH_API PrepareModuleInput : public ParallelStyle {
 public:
  explicit PrepareModuleInput(PrepareInputOptions options);
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "PrepareModuleInput"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const PrepareInputOptions& options() const { return options_; }

 private:
  PrepareInputOptions options_;
};

// Layouts of the outputs of a module, as forward gives them and as callers want them.
struct PrepareOutputOptions {
  Layouts output_layouts = {};
  Layouts desired_output_layouts = {};
  bool use_local_output = true;
};
// Makes outputs distributed as output_layouts say, and brings them to desired_output_layouts.
class MESHTORCH_API PrepareModuleOutput : public ParallelStyle {
 public:
  explicit PrepareModuleOutput(PrepareOutputOptions options);
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "PrepareModuleOutput"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const PrepareOutputOptions& options() const { return options_; }

 private:
  PrepareOutputOptions options_;
};

// Both of these.
struct PrepareInputOutputOptions {
  Layouts input_layouts = {};
  Layouts desired_input_layouts = {};
  NamedLayouts input_kwarg_layouts = {};
  NamedLayouts desired_input_kwarg_layouts = {};
  bool use_local_input = false;
  Layouts output_layouts = {};
  Layouts desired_output_layouts = {};
  bool use_local_output = true;
};
// PrepareModuleInput and PrepareModuleOutput in one.
class MESHTORCH_API PrepareModuleInputOutput : public ParallelStyle {
 public:
  explicit PrepareModuleInputOutput(const PrepareInputOutputOptions& options);
  void apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const override;
  std::string name() const override { return "PrepareModuleInputOutput"; }
  std::vector<std::pair<std::string, Attribute>> attributes() const override;
  const PrepareModuleInput& input() const { return input_; }
  const PrepareModuleOutput& output() const { return output_; }

 private:
  PrepareModuleInput input_;
  PrepareModuleOutput output_;
};

// Any style, as a value.
class Style {
 public:
  template <std::derived_from<ParallelStyle> S>
  Style(S style) : style_(std::make_shared<const S>(std::move(style))) {}
  Style(std::shared_ptr<const ParallelStyle> style) : style_(std::move(style)) {}

  const ParallelStyle& operator*() const { return *style_; }
  const ParallelStyle* operator->() const { return style_.get(); }

 private:
  std::shared_ptr<const ParallelStyle> style_;
};

}  // namespace meshtorch
