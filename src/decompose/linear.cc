// Products with a matrix as one node of the graph: what LibTorch records of them is three to five, and each
// costs the engine more than a small product does.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <array>
#include <optional>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "operator/kept_layout.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The matrix of a product: with a row for each output, as a layer's weight has it, or for each input.
enum class RowsAre : std::uint8_t { outputs, inputs };

at::Tensor as_rows(const at::Tensor& t) {
  if (t.dim() == 2) return t;
  // Not -1: that has no meaning where the rows are empty.
  const std::array<std::int64_t, 2> sizes{c10::multiply_integers(t.sizes().slice(0, t.dim() - 1)),
                                          t.size(-1)};
  return t.is_contiguous() ? t.view(sizes) : t.reshape(sizes);
}

at::Tensor with_sizes(const at::Tensor& rows, c10::IntArrayRef sizes) {
  return sizes.size() == 2 ? rows : rows.view(sizes);
}

template <RowsAre kRows>
at::Tensor product(const at::Tensor& input, const at::Tensor& matrix, const at::Tensor& bias) {
  const at::Tensor by_input = kRows == RowsAre::outputs ? matrix.t() : matrix;
  Shape sizes = input.sizes().vec();
  sizes.back() = by_input.size(1);
  const at::Tensor rows = as_rows(input);
  return with_sizes(bias.defined() ? at::addmm(bias, rows, by_input) : rows.mm(by_input), sizes);
}

// The gradient lies in memory as the matrix does.
template <RowsAre kRows>
at::Tensor gradient_of_matrix(const at::Tensor& input_rows, const at::Tensor& gradient_rows,
                              bool is_by_output) {
  if constexpr (kRows == RowsAre::outputs) return gradient_rows.t().mm(input_rows);
  return is_by_output ? gradient_rows.t().mm(input_rows).t() : input_rows.t().mm(gradient_rows);
}

template <RowsAre kRows>
class ProductNode : public torch::autograd::Node {
 public:
  // Of the input and the matrix, what the gradient of the other needs is kept.
  void keep(const at::Tensor& input, const at::Tensor& matrix) {
    sizes_ = input.sizes().vec();
    is_by_output_ = matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
    if (should_compute_output(1)) input_ = SavedVariable(input, /*is_output=*/false);
    if (should_compute_output(0)) matrix_ = SavedVariable(matrix, /*is_output=*/false);
  }

  std::string name() const override {
    return kRows == RowsAre::outputs ? "LinearBackward" : "MatmulBackward";
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    variable_list results(num_outputs());
    if (!gradients[0].defined()) return results;
    const at::Tensor input = task_should_compute_output(1) ? input_.unpack() : at::Tensor();
    const at::Tensor matrix = task_should_compute_output(0) ? matrix_.unpack() : at::Tensor();
    // Nothing is recorded, unless the gradient is to have one of its own.
    std::optional<at::AutoDispatchBelowADInplaceOrView> unrecorded;
    if (!at::GradMode::is_enabled()) unrecorded.emplace();
    const at::Tensor rows = as_rows(gradients[0]);
    if (matrix.defined())
      results[0] = with_sizes(rows.mm(kRows == RowsAre::outputs ? matrix : matrix.t()), sizes_);
    if (input.defined()) results[1] = gradient_of_matrix<kRows>(as_rows(input), rows, is_by_output_);
    if (kRows == RowsAre::outputs && task_should_compute_output(2)) results[2] = rows.sum(0);
    return results;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input_.reset_data();
    matrix_.reset_data();
  }

 private:
  SavedVariable input_, matrix_;
  Shape sizes_;  // of the input
  bool is_by_output_ = false;
};

// Whether the dims before the last become one without anything that moves, is copied or has to be reduced, so
// that doing so in backward once more costs nothing.
bool folds_in_place(const at::Tensor& input, const Layout& layout) {
  if (input.dim() > 2 && !input.is_contiguous()) return false;
  const std::int64_t last = input.dim() - 1;
  for (const Placement& p : layout.placements) {
    if (p.is_partial() || (p.is_shard() && p.dim() != 0 && p.dim() != last)) return false;
  }
  return true;
}

// With it LibTorch casts between the parts of a composite operator.
bool is_autocast(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

// The derivative of forward mode, which the node does not carry on.
bool has_tangent(const at::Tensor& t) { return t.defined() && t._fw_grad(/*level=*/0).defined(); }

bool is_one_product(const at::Tensor& input, const at::Tensor& matrix) {
  const DTensorMeta* of_input = meta_of(input);
  const DTensorMeta* of_matrix = meta_of(matrix);
  return of_input != nullptr && of_matrix != nullptr && of_input->mesh == of_matrix->mesh &&
         input.dim() >= 2 && matrix.dim() == 2 && input.scalar_type() == matrix.scalar_type() &&
         at::isFloatingType(input.scalar_type()) && !of_matrix->layout->has_partial &&
         folds_in_place(input, *of_input->layout) && !keeps_layouts() &&
         !is_autocast(input.device().type()) && !has_tangent(input) && !has_tangent(matrix);
}

template <RowsAre kRows>
at::Tensor as_one_node(const at::Tensor& input, const at::Tensor& matrix, const at::Tensor& bias) {
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView unrecorded;
    result = product<kRows>(input, matrix, bias);
  }
  if (!torch::autograd::compute_requires_grad(input, matrix, bias)) return result;
  const auto node = c10::make_intrusive<ProductNode<kRows>>();
  node->set_next_edges(torch::autograd::collect_next_edges(input, matrix, bias));
  node->keep(input, matrix);
  torch::autograd::set_history(result, node);
  return result;
}

bool is_bias_of(const at::Tensor& bias, const at::Tensor& weight) {
  const DTensorMeta* meta = meta_of(bias);
  return meta != nullptr && meta->mesh == distributed(weight, "a layer's weight").mesh && bias.dim() == 1 &&
         bias.size(0) == weight.size(0) && bias.scalar_type() == weight.scalar_type() && !has_tangent(bias);
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& given) {
  const at::Tensor bias = given.value_or(at::Tensor());
  const bool is_one = is_one_product(input, weight) && input.size(-1) == weight.size(1) &&
                      (!bias.defined() || is_bias_of(bias, weight));
  if (!is_one) return as_composite<at::_ops::linear>(input, weight, given);
  return as_one_node<RowsAre::outputs>(input, weight, bias);
}

// The product of more than two dims with a matrix: other ones are one node already.
at::Tensor matmul(const at::Tensor& input, const at::Tensor& other) {
  const bool is_one = input.dim() > 2 && is_one_product(input, other) && input.size(-1) == other.size(0);
  return is_one ? as_one_node<RowsAre::inputs>(input, other, {})
                : as_composite<at::_ops::matmul>(input, other);
}

}  // namespace

void add_linear_decompositions(DecompositionTable& ops) {
  ops.add<at::_ops::linear>(linear);
  ops.add<at::_ops::matmul>(matmul);
}

}  // namespace meshtorch::internal
