// Calls of matrix products, norms, convolutions, attention and the operators of optimizers.
#include "call_table.h"

namespace meshtorch::testing {

using namespace inputs;

namespace {

const c10::List<bool> kAll{true, true, true};

void add_products(CallTable& t) {
  t.add("mm", {x({5, 4}), x({4, 6}, 2)});
  t.add("bmm", {x({3, 5, 4}), x({3, 4, 2}, 2)});
  t.add("mv", {x({5, 4}), x({4}, 2)});
  t.add({"dot", "vdot"}, {x({7}), x({7}, 2)});
  const std::map<std::string, c10::IValue> scaled{{"beta", 2}, {"alpha", 0.5}};
  for (const Ints& term : {Ints{5, 6}, Ints{6}, Ints{5, 1}, Ints{1, 6}, Ints{}})
    t.add("addmm", {x(term), x({5, 4}, 2), x({4, 6}, 3)}, scaled);
  for (const Ints& term : {Ints{3, 5, 2}, Ints{5, 1}, Ints{2}})
    t.add("baddbmm", {x(term), x({3, 5, 4}, 2), x({3, 4, 2}, 3)}, scaled);
  t.add("addbmm", {x({5, 2}), x({3, 5, 4}, 2), x({3, 4, 2}, 3)}, scaled);
  t.add("addmv", {x({5}), x({5, 4}, 2), x({4}, 3)}, scaled);
  t.add("addmv", {x({}), x({5, 4}, 2), x({4}, 3)}, scaled);
  t.add("addr", {x({5, 4}), x({5}, 2), x({4}, 3)}, scaled);
  t.add("addr", {x({4}), x({5}, 2), x({4}, 3)}, scaled);
  t.add("_int_mm", {(x({5, 4}) * 4).to(torch::kChar), (x({4, 6}, 2) * 4).to(torch::kChar)});
  t.add("_foreach_mm", {Tensors{x({5, 4}), x({3, 2})}, Tensors{x({4, 6}, 2), x({2, 7}, 2)}});
  t.add("linalg_cross", {x({5, 3, 4}), x({5, 3, 4}, 2)}, {{"dim", 1}});
  t.add("_foreach_addcmul.Tensor", {Tensors{x({5, 4}), x({3})}, Tensors{x({5, 4}, 2), x({3}, 2)},
                                    Tensors{x({5, 4}, 3), x({3}, 3)}, x({2}, 4)});
  t.add("_foreach_addcdiv.Tensor", {Tensors{x({5, 4}), x({3})}, Tensors{x({5, 4}, 2), x({3}, 2)},
                                    Tensors{positive({5, 4}, 3), positive({3}, 3)}, x({2}, 4)});
}

void add_norms(CallTable& t) {
  for (const bool affine : {true, false}) {
    const c10::IValue weight = affine ? x({4}, 2) : kAbsent, bias = affine ? x({4}, 3) : kAbsent;
    t.add("native_layer_norm", {x({3, 5, 4}), weight, bias}, {{"normalized_shape", Ints{4}}, {"eps", 1e-5}});
    t.add("_fused_rms_norm", {x({3, 5, 4}), weight}, {{"normalized_shape", Ints{4}}, {"eps", 1e-5}});
    t.add("native_group_norm", {x({5, 4, 3}), weight, bias},
          {{"N", 5}, {"C", 4}, {"HxW", 3}, {"group", 2}, {"eps", 1e-5}});
    for (const bool training : {true, false}) {
      const std::map<std::string, c10::IValue> how{{"training", training}, {"momentum", 0.1}, {"eps", 1e-5}};
      t.add({"native_batch_norm", "_native_batch_norm_legit"},
            {x({5, 4, 3}), weight, bias, x({4}, 5), positive({4}, 6)}, how);
      if (training) t.add("native_batch_norm", {x({5, 4, 3}), weight, bias, kAbsent, kAbsent}, how);
      if (training) t.add("_native_batch_norm_legit.no_stats", {x({5, 4, 3}), weight, bias}, how);
    }
  }
  t.add("native_layer_norm", {x({5, 3, 4}), x({3, 4}, 2), kAbsent},
        {{"normalized_shape", Ints{3, 4}}, {"eps", 1e-5}});
  t.add("native_layer_norm_backward",
        {x({5, 3, 4}, 1), x({5, 3, 4}), x({5, 3, 1}, 2), positive({5, 3, 1}, 3), x({4}, 4), x({4}, 5)},
        {{"normalized_shape", Ints{4}}, {"output_mask", kAll}});
  t.add("_fused_rms_norm_backward", {x({5, 3, 4}, 1), x({5, 3, 4}), positive({5, 3, 1}, 3), x({4}, 4)},
        {{"normalized_shape", Ints{4}}, {"output_mask", c10::List<bool>{true, true}}});
  t.add("native_group_norm_backward",
        {x({5, 4, 3}, 1), x({5, 4, 3}), x({5, 2}, 2), positive({5, 2}, 3), x({4}, 4)},
        {{"N", 5}, {"C", 4}, {"HxW", 3}, {"group", 2}, {"output_mask", kAll}});
  t.add("native_batch_norm_backward",
        {x({5, 4, 3}, 1), x({5, 4, 3}), x({4}, 2), x({4}, 5), positive({4}, 6), x({4}, 3), positive({4}, 4)},
        {{"train", true}, {"eps", 1e-5}, {"output_mask", kAll}});
}

// The batch and all channels may be split: odd numbers of them, and groups.
void add_convolutions(CallTable& t) {
  for (const int64_t groups : {1, 2, 4}) {
    for (const bool transposed : {false, true}) {
      const Ints weight =
          transposed ? Ints{4, 6 / (groups == 4 ? 1 : groups), 3} : Ints{groups == 4 ? 8 : 6, 4 / groups, 3};
      const int64_t outputs = transposed ? weight[1] * groups : weight[0];
      const std::map<std::string, c10::IValue> how{{"stride", Ints{1}},         {"padding", Ints{1}},
                                                   {"dilation", Ints{1}},       {"transposed", transposed},
                                                   {"output_padding", Ints{0}}, {"groups", groups}};
      for (const bool with_bias : {true, false}) {
        t.add({"convolution", "_convolution"},
              {x({5, 4, 7}), x(weight, 2), with_bias ? x({outputs}, 3) : kAbsent}, how);
        std::map<std::string, c10::IValue> backward = how;
        backward["output_mask"] = c10::List<bool>{true, true, with_bias};
        backward["bias_sizes"] = with_bias ? c10::IValue(Ints{outputs}) : c10::IValue();
        t.add("convolution_backward", {x({5, outputs, 7}, 1), x({5, 4, 7}), x(weight, 2)}, backward);
      }
    }
  }
  t.add("convolution", {x({4, 7}), x({6, 4, 3}, 2), x({6}, 3)},
        {{"stride", Ints{1}},
         {"padding", Ints{1}},
         {"dilation", Ints{1}},
         {"transposed", false},
         {"output_padding", Ints{0}},
         {"groups", 1}});
}

void add_attention(CallTable& t) {
  const auto add = [&](const Ints& query, const Ints& key, const c10::IValue& mask, bool causal) {
    const std::map<std::string, c10::IValue> how{{"is_causal", causal}, {"attn_mask", mask}};
    t.add("_scaled_dot_product_flash_attention_for_cpu", {x(query), x(key, 2), x(key, 3)}, how);
    const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        x(query), x(key, 2), x(key, 3), 0, causal,
        mask.isNone() ? std::optional<torch::Tensor>() : mask.toTensor());
    if (query[1] == key[1])
      t.add("_scaled_dot_product_flash_attention_for_cpu_backward",
            {x(query, 5), x(query), x(key, 2), x(key, 3), out, logsumexp}, how);
  };
  add({3, 5, 7, 4}, {3, 5, 6, 4}, {}, false);
  add({3, 5, 7, 4}, {3, 5, 7, 4}, {}, true);
  add({3, 4, 7, 4}, {3, 2, 7, 4}, {}, false);
  add({3, 5, 7, 4}, {3, 5, 6, 4}, x({7, 6}, 4), false);
  add({3, 5, 7, 4}, {3, 5, 6, 4}, x({3, 5, 7, 6}, 4), false);
  add({3, 5, 7, 4}, {3, 5, 6, 4}, x({3, 1, 7, 6}, 4), false);
  add({3, 5, 7, 4}, {3, 5, 6, 4}, x({1, 5, 7, 6}, 4), false);
  add({3, 5, 7, 4}, {3, 5, 6, 4}, x({3, 5, 1, 6}, 4), false);
}

}  // namespace

std::vector<Call> network_calls() {
  CallTable t;
  add_products(t);
  add_norms(t);
  add_convolutions(t);
  add_attention(t);
  return std::move(t).calls();
}

}  // namespace meshtorch::testing
