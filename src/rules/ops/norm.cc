// Rules of softmax and of the normalizations, with their gradients.
#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// Softmax along one dim, which must be whole; a tensor without dims counts as one of size 1.
RuleUse softmax(const OpArguments& call) {
  if (call.shape("self").empty()) return {"_.. -> _.."};
  return {"a.. s! b.. -> a.. s! b..",
          {.lengths = {}, .positions = {{"s", call.integer("dim")}}, .sizes = {}}};
}

RuleUse softmax_backward(const OpArguments& call) {
  if (call.shape("grad_output").empty()) return {"_.., _.. -> _.."};
  return {"*a.. s! b.., a.. s! b.. -> a.. s! b..",
          {.lengths = {}, .positions = {{"s", call.integer("dim")}}, .sizes = {}}};
}

void add_softmax(RuleTable& ops) {
  ops.choose({"_softmax", "_log_softmax", "_safe_softmax"}, softmax).needs_elements();
  ops.choose({"_softmax_backward_data", "_log_softmax_backward_data"}, softmax_backward).needs_elements();
}

// The gradients of weight and bias are sums over what the input's gradient keeps.
void add_layer_norms(RuleTable& ops) {
  ops.add("native_layer_norm", "a.. n..!, n..!?, n..!? -> a.. n..!, a.. 1.., a.. 1..")
      .needs_elements()
      .rank("n", "normalized_shape");
  ops.add("native_layer_norm_backward",
          "*a.. n..!, a.. n..!, a.. 1.., a.. 1.., n..!?, n..!? -> a.. n..!, +n..!, +n..!")
      .needs_elements()
      .rank("n", "normalized_shape");
  ops.add("_fused_rms_norm", "a.. n..!, n..!? -> a.. n..!, a.. 1..")
      .needs_elements()
      .rank("n", "normalized_shape");
}

void add_group_norms(RuleTable& ops) {
  ops.add("native_group_norm", "n c! s..!, c!?, c!? -> n c! s..!, n _, n _")
      .needs_elements()
      .local({LocalChange::Kind::factor_size, "N", "n"});
  ops.add("native_group_norm_backward", "*n c! s..!, n c! s..!, n _, n _, c!? -> n c! s..!, +c!, +c!")
      .needs_elements()
      .local({LocalChange::Kind::factor_size, "N", "n"});
}

// Statistics are over the batch and over space: only channels can be split in training. Otherwise
// all can, and the saved statistics have no elements.
RuleUse batch_norm(const OpArguments& call) {
  if (call.flag("training")) return {"n! c s..!, c?, c?, c?, c? -> n! c s..!, c, c"};
  return {"n c s.., c?, c?, c?, c? -> n c s.., +_, +_"};
}

RuleUse batch_norm_without_statistics(const OpArguments& call) {
  if (call.flag("training")) return {"n! c s..!, c?, c? -> n! c s..!, c, c"};
  return {"_.., _..?, _..? -> _.., _.., _.."};
}

void add_batch_norms(RuleTable& ops) {
  ops.choose({"native_batch_norm", "_native_batch_norm_legit"}, batch_norm).needs_elements();
  ops.choose("_native_batch_norm_legit.no_stats", batch_norm_without_statistics).needs_elements();
  ops.add("_native_batch_norm_legit_no_training", "n c s.., c?, c?, c, c -> n c s.., +_, +_")
      .needs_elements();
  ops.choose("_native_batch_norm_legit_functional",
             [](const OpArguments& call) -> RuleUse {
               if (call.flag("training")) return {"n! c s..!, c?, c?, c, c -> n! c s..!, c, c, c, c"};
               return {"_.., _..?, _..?, _.., _.. -> _.., _.., _.., _.., _.."};
             })
      .needs_elements();
  ops.add("batch_norm_update_stats", "n! c s..!, c?, c? -> c, c").needs_elements();
  // The kernel of LibTorch 2.13 dies (it divides by zero) where a rank has no batch or no channel.
  ops.add("native_batch_norm_backward", "*n! c! s..!, n! c! s..!, _?, _?, _?, _?, _? -> n! c! s..!, c!, c!")
      .needs_elements();
}

// A weight as direction and length. The lengths are over all dims but one: the first, or the last, which is
// not split.
RuleUse weight_norm(const OpArguments& call, const char* weight, Rule first, Rule whole) {
  const auto rank = static_cast<std::int64_t>(call.shape(weight).size());
  if (call.integer("dim") != 0 || rank == 0) return {whole};
  return {first, {.lengths = {{"r", rank - 1}}, .positions = {}, .sizes = {}}};
}

void add_weight_norms(RuleTable& ops) {
  ops.choose("_weight_norm_interface",
             [](const OpArguments& call) {
               return weight_norm(call, "v", "n r..!, n 1.. -> n r..!, n 1..", "_.., _.. -> _.., _..");
             })
      .needs_elements();
  ops.choose("_weight_norm_interface_backward",
             [](const OpArguments& call) {
               return weight_norm(call, "saved_v", "*n r..!, n r..!, n 1.., n 1.. -> n r..!, n 1..",
                                  "_.., _.., _.., _.. -> _.., _..");
             })
      .needs_elements();
}

}  // namespace

void add_norm_rules(RuleTable& ops) {
  add_softmax(ops);
  add_layer_norms(ops);
  add_group_norms(ops);
  add_batch_norms(ops);
  add_weight_norms(ops);
}

}  // namespace meshtorch::internal
