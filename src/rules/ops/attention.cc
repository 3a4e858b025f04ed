// Rules of fused attention on the CPU: batch, heads and, unless causal, queries may be split.
#include <optional>

#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// The dims of each tensor: batch b, heads h of keys, r heads of queries to each of them, queries l,
// keys s, and the sizes e and v of their vectors.
struct AttentionDims {
  std::string query, key, value, out, logsumexp, mask;
  std::int64_t key_heads = 1, heads_per_key = 1;

  Hints hints() const {
    return {.lengths = {}, .positions = {}, .sizes = {{"h", key_heads}, {"r", heads_per_key}}};
  }
};

// The mask's dims, of which those of size 1 are broadcast; nothing if it has another form.
std::optional<std::string> mask_dims(const OpArguments& call, const std::string& heads,
                                     const std::string& queries) {
  if (!call.has("attn_mask")) return " _..?";
  const Shape mask = call.shape("attn_mask");
  const std::string matrix = " " + queries + " s!?";
  if (mask.size() == 2) return matrix;
  if (mask.size() == 4) return (mask[1] == 1 ? " b 1" : " b " + heads) + matrix;
  return std::nullopt;
}

std::optional<AttentionDims> attention_dims(const OpArguments& call) {
  const Shape query = call.shape("query");
  const Shape key = call.shape("key");
  const Shape value = call.shape("value");
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) return std::nullopt;
  if (query[0] != key[0] || key[0] != value[0] || key[1] != value[1] || key[2] != value[2] ||
      query[3] != key[3] || key[1] == 0 || query[1] % key[1] != 0) {
    return std::nullopt;
  }
  AttentionDims dims;
  dims.key_heads = key[1];
  dims.heads_per_key = query[1] / key[1];
  const std::string heads = dims.heads_per_key == 1 ? "h" : "(h r)";
  // A causal mask counts queries from the first.
  const std::string queries = call.flag("is_causal") ? "l!" : "l";
  const auto mask = mask_dims(call, heads, queries);
  if (!mask) return std::nullopt;
  dims.query = "b " + heads + " " + queries + " e!";
  dims.key = "b h s! e!";
  dims.value = "b h s! v!";
  dims.out = "b " + heads + " " + queries + " v!";
  dims.logsumexp = "b " + heads + " " + queries;
  dims.mask = *mask;
  return dims;
}

RuleUse attention(const OpArguments& call) {
  const auto dims = attention_dims(call);
  if (!dims) return {"_.., _.., _.., _..? -> _.., _.."};
  return {Rule::parse(dims->query + "," + dims->key + "," + dims->value + "," + dims->mask + " -> " +
                      dims->out + "," + dims->logsumexp),
          dims->hints()};
}

// The gradients of keys and values are sums over queries.
RuleUse attention_backward(const OpArguments& call) {
  const auto dims = attention_dims(call);
  if (!dims) return {"_.., _.., _.., _.., _.., _.., _..? -> _.., _.., _.."};
  return {Rule::parse("*" + dims->out + "," + dims->query + "," + dims->key + "," + dims->value + "," +
                      dims->out + "," + dims->logsumexp + "," + dims->mask + " -> " + dims->query + ",+" +
                      dims->key + ",+" + dims->value),
          dims->hints()};
}

}  // namespace

void add_attention_rules(RuleTable& ops) {
  ops.choose("_scaled_dot_product_flash_attention_for_cpu", attention).needs_elements();
  ops.choose("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward).needs_elements();
}

}  // namespace meshtorch::internal
