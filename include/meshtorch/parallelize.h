// Making a model tensor-parallel: a plan says which modules get which style.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/parallel_style.h"

namespace meshtorch {

// Styles by module name patterns, applied in this order. A pattern is a dotted name whose parts may hold
// fnmatch's * ? [abc] [!abc]; the empty one is the module itself.
class MESHTORCH_API ParallelizePlan {
 public:
  using Entry = std::pair<std::string, Style>;

  ParallelizePlan() = default;
  ParallelizePlan(std::initializer_list<Entry> entries) : entries_(entries) {}
  explicit ParallelizePlan(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  // One style, for the module itself.
  ParallelizePlan(Style style) : entries_{{std::string(), std::move(style)}} {}
  template <std::derived_from<ParallelStyle> S>
  ParallelizePlan(S style) : ParallelizePlan(Style(std::move(style))) {}

  const std::vector<Entry>& entries() const { return entries_; }

  // [{"modules": "layers.*.up", "style": "ColwiseParallel", "input_layouts": "R", …}, …]. Only styles of this
  // library can be written.
  std::string to_json() const;
  static ParallelizePlan from_json(const std::string& text);

 private:
  std::vector<Entry> entries_;
};

// How parallelize_module applies a plan.
struct ParallelizeOptions {
  // As in DistributeOptions.
  std::optional<int> src_data_rank = 0;
  // The axis to use of a mesh of several. Default: the one named "tp".
  std::string axis = {};
  // Warn of a pattern that matches nothing, rather than throw.
  bool warn_if_unmatched = false;
};

// Applies the plan to the modules below `module`. Returns the module.
MESHTORCH_API torch::nn::Module& parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh,
                                                    const ParallelizePlan& plan,
                                                    const ParallelizeOptions& options = {});

// One line for each module that gets a style: name, class, style.
MESHTORCH_API std::string describe_plan(const torch::nn::Module& module, const ParallelizePlan& plan);

}  // namespace meshtorch
