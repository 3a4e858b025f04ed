// Rules of convolution, pooling, padding and interpolation: batch and channels may be split.
#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// ---- convolution ----

bool is_batched(const OpArguments& call) {
  return call.shape("input").size() == call.shape("weight").size() && call.shape("input").size() >= 3 &&
         call.integer("groups") > 0;
}

// Groups g, each of c input channels and o output channels: whole groups may go to different ranks.
RuleUse grouped(const OpArguments& call, Rule rule) {
  const std::int64_t groups = call.integer("groups");
  const Shape weight = call.shape("weight");
  const Shape input = call.shape("input");
  const std::int64_t outputs = call.flag("transposed") ? weight[1] : weight[0] / groups;
  return {
      rule,
      {.lengths = {}, .positions = {}, .sizes = {{"g", groups}, {"c", input[1] / groups}, {"o", outputs}}},
      ReduceOp::sum,
      {{LocalChange::Kind::factor_size, "groups", "g"}}};
}

RuleUse convolution(const OpArguments& call) {
  if (!is_batched(call)) return {"_.., _.., _..? -> _.."};
  if (call.integer("groups") == 1) {
    return {call.flag("transposed") ? Rule("*n c s..!, *c o k..!, +o? -> n o _..")
                                    : Rule("*n c s..!, *o c k..!, +o? -> n o _..")};
  }
  return grouped(call, call.flag("transposed")
                           ? Rule("*n (g c) s..!, *(g c) o k..!, +(g o)? -> n (g o) _..")
                           : Rule("*n (g c) s..!, *(g o) c k..!, +(g o)? -> n (g o) _.."));
}

// The gradients of input, weight and bias: sums over o, over n, and over n. That of the bias would
// be whole on each rank when c is split, so c may be split only where there is no bias.
RuleUse convolution_backward(const OpArguments& call) {
  if (!is_batched(call)) return {"_.., _.., _.. -> _.., _.., _.."};
  if (call.integer("groups") != 1) {
    return grouped(call, call.flag("transposed") ? Rule("*n (g o) p..!, n (g c) s..!, (g c) o k..! -> "
                                                        "+n (g c) s..!, +(g c) o k..!, +(g o)")
                                                 : Rule("*n (g o) p..!, n (g c) s..!, (g o) c k..! -> "
                                                        "+n (g c) s..!, +(g o) c k..!, +(g o)"));
  }
  if (call.flag("transposed")) {
    return {call.has("bias_sizes") ? Rule("*n o p..!, n c! s..!, c! o k..! -> +n c! s..!, +c! o k..!, +o")
                                   : Rule("*n o p..!, n c s..!, c o k..! -> +n c s..!, +c o k..!, +o")};
  }
  return {call.has("bias_sizes") ? Rule("*n o p..!, n c! s..!, o c! k..! -> +n c! s..!, +o c! k..!, +o")
                                 : Rule("*n o p..!, n c s..!, o c k..! -> +n c s..!, +o c k..!, +o")};
}

void add_convolution(RuleTable& ops) {
  ops.choose({"convolution", "_convolution"}, convolution).needs_elements();
  ops.choose("convolution_backward", convolution_backward).needs_elements();
}

// ---- pooling: `a..` is the batch, if any, and the channels ----

void add_pooling(RuleTable& ops) {
  ops.add({"avg_pool2d", "_adaptive_avg_pool2d"}, "*a.. _ _ -> a.. _ _").needs_elements();
  ops.add({"avg_pool3d", "_adaptive_avg_pool3d"}, "*a.. _ _ _ -> a.. _ _ _").needs_elements();
  for (const char* op : {"avg_pool2d_backward", "_adaptive_avg_pool2d_backward"}) {
    ops.add(op, "*a.. _ _, a.. h! w! -> a.. h! w!").needs_elements().shape_only("self");
  }
  for (const char* op : {"avg_pool3d_backward", "_adaptive_avg_pool3d_backward"}) {
    ops.add(op, "*a.. _ _ _, a.. d! h! w! -> a.. d! h! w!").needs_elements().shape_only("self");
  }
  ops.add({"max_pool2d_with_indices", "adaptive_max_pool2d"}, "a.. _ _ -> a.. _ _, a.. _ _").needs_elements();
  ops.add({"max_pool3d_with_indices", "adaptive_max_pool3d"}, "a.. _ _ _ -> a.. _ _ _, a.. _ _ _")
      .needs_elements();
  for (const char* op : {"max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward",
                         "fractional_max_pool2d_backward"}) {
    ops.add(op, "*a.. _ _, a.. h! w!, a.. _ _ -> a.. h! w!").needs_elements().shape_only("self");
  }
  for (const char* op : {"max_pool3d_with_indices_backward", "adaptive_max_pool3d_backward",
                         "fractional_max_pool3d_backward"}) {
    ops.add(op, "*a.. _ _ _, a.. d! h! w!, a.. _ _ _ -> a.. d! h! w!").needs_elements().shape_only("self");
  }
  ops.add("fractional_max_pool2d", "n c _ _, n c _ -> n c _ _, n c _ _").needs_elements();
  ops.add("fractional_max_pool3d", "n c _ _ _, n c _ -> n c _ _ _, n c _ _ _").needs_elements();
  ops.add("max_unpool2d", "*a.. _ _, a.. _ _ -> a.. _ _").needs_elements();
  ops.add("max_unpool3d", "*a.. _ _ _, a.. _ _ _ -> a.. _ _ _").needs_elements();
}

// ---- padding ----

// `pad` has two numbers for each dim, the last dim first.
RuleUse constant_pad(const OpArguments& call) {
  const std::size_t rank = call.shape("self").size();
  const std::vector<std::int64_t> pad = call.integers("pad");
  if (rank > TensorPattern::kMaxDims || pad.size() % 2 != 0 || pad.size() > 2 * rank) {
    return {"_.. -> _.."};
  }
  std::string operand, result;
  for (std::size_t d = 0; d < rank; ++d) {
    const std::size_t at = 2 * (rank - 1 - d);
    const bool is_padded = at < pad.size() && (pad[at] != 0 || pad[at + 1] != 0);
    const std::string name = " x" + std::to_string(d);
    operand += is_padded ? " _" : name;
    result += is_padded ? " _" : name;
  }
  // Zeros add nothing to a sum; any number is its own average, minimum and maximum.
  const bool is_zero = !call.is_nonzero_number("value");
  RuleUse use{Rule::parse((is_zero ? "*" : "") + operand + " ->" + result)};
  use.kept = {{ReduceOp::min, ReduceOp::min}, {ReduceOp::max, ReduceOp::max}};
  if (!is_zero) use.kept.push_back({ReduceOp::avg, ReduceOp::avg});
  return use;
}

void add_padding(RuleTable& ops) {
  ops.choose("constant_pad_nd", constant_pad).needs_elements();
  ops.add({"reflection_pad1d", "replication_pad1d"}, "*a.. _ -> a.. _").needs_elements();
  ops.add({"reflection_pad2d", "replication_pad2d"}, "*a.. _ _ -> a.. _ _").needs_elements();
  ops.add({"reflection_pad3d", "replication_pad3d"}, "*a.. _ _ _ -> a.. _ _ _").needs_elements();
  for (const char* op : {"reflection_pad1d_backward", "replication_pad1d_backward"}) {
    ops.add(op, "*a.. _, a.. w! -> a.. w!").needs_elements().shape_only("self");
  }
  for (const char* op : {"reflection_pad2d_backward", "replication_pad2d_backward"}) {
    ops.add(op, "*a.. _ _, a.. h! w! -> a.. h! w!").needs_elements().shape_only("self");
  }
  for (const char* op : {"reflection_pad3d_backward", "replication_pad3d_backward"}) {
    ops.add(op, "*a.. _ _ _, a.. d! h! w! -> a.. d! h! w!").needs_elements().shape_only("self");
  }
}

// ---- interpolation ----

void add_interpolation(RuleTable& ops) {
  ops.add({"upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"}, "*n c _ -> n c _")
      .needs_elements();
  ops.add({"upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d",
           "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"},
          "*n c _ _ -> n c _ _")
      .needs_elements();
  ops.add({"upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"},
          "*n c _ _ _ -> n c _ _ _")
      .needs_elements();
  const LocalChange input_size{LocalChange::Kind::result_sizes, "input_size"};
  for (const char* op :
       {"upsample_nearest1d_backward", "_upsample_nearest_exact1d_backward", "upsample_linear1d_backward"}) {
    ops.add(op, "*n c _ -> n c _").needs_elements().local(input_size);
  }
  for (const char* op :
       {"upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward", "upsample_bilinear2d_backward",
        "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
        "_upsample_lanczos2d_aa_backward"}) {
    ops.add(op, "*n c _ _ -> n c _ _").needs_elements().local(input_size);
  }
  for (const char* op : {"upsample_nearest3d_backward", "_upsample_nearest_exact3d_backward",
                         "upsample_trilinear3d_backward"}) {
    ops.add(op, "*n c _ _ _ -> n c _ _ _").needs_elements().local(input_size);
  }
  ops.add("grid_sampler_2d", "*n c _ _, n h w _ -> n c h w").needs_elements();
  ops.add("grid_sampler_2d_backward", "*n _ _ _, n _ _ _, n _ _ _ -> n _ _ _, n _ _ _").needs_elements();
  ops.add("grid_sampler_3d_backward", "*n _ _ _ _, n _ _ _ _, n _ _ _ _ -> n _ _ _ _, n _ _ _ _")
      .needs_elements();
  ops.add("grid_sampler_3d", "*n c _ _ _, n d h w _ -> n c d h w").needs_elements();
}

// ---- the convolutions that others are made of ----

void add_direct_convolutions(RuleTable& ops) {
  const auto by_rank = [&](std::initializer_list<const char*> names, std::size_t rank, Rule rule) {
    for (const char* op : names) {
      ops.choose(op,
                 [rank, rule](const OpArguments& call) -> RuleUse {
                   return {call.shape("self").size() == rank ? rule : Rule("_.., _.., _..? -> _..")};
                 })
          .needs_elements();
    }
  };
  by_rank({"_slow_conv2d_forward", "slow_conv_dilated2d"}, 4, "n c! s..!, o c! k..!, o? -> n o _..");
  by_rank({"slow_conv3d_forward", "slow_conv_dilated3d"}, 5, "n c! s..!, o c! k..!, o? -> n o _..");
  by_rank({"slow_conv_transpose2d"}, 4, "n c! s..!, c! o k..!, o? -> n o _..");
  by_rank({"slow_conv_transpose3d"}, 5, "n c! s..!, c! o k..!, o? -> n o _..");
  ops.add("conv_tbc", "*_ b c, *_ c o, +o -> _ b o").needs_elements();
}

// ---- patches ----

void add_patches(RuleTable& ops) {
  ops.choose("im2col",
             [](const OpArguments& call) -> RuleUse {
               return {call.shape("self").size() == 4 ? Rule("*n _ _ _ -> n _ _") : Rule("_.. -> _..")};
             })
      .needs_elements();
  ops.choose("col2im",
             [](const OpArguments& call) -> RuleUse {
               return {call.shape("self").size() == 3 ? Rule("*n _ _ -> n _ _ _") : Rule("_.. -> _..")};
             })
      .needs_elements();
}

}  // namespace

void add_conv_rules(RuleTable& ops) {
  add_convolution(ops);
  add_pooling(ops);
  add_padding(ops);
  add_interpolation(ops);
  add_direct_convolutions(ops);
  add_patches(ops);
}

}  // namespace meshtorch::internal
