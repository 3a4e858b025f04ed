// Operators with inputs to try them on.
#include "samples.h"

#include "sample_inputs.h"

namespace meshtorch::testing {
namespace {

using namespace inputs;
using torch::Tensor;
using Inputs = std::vector<Tensor>;

Sample one(std::string name, Tensor input, std::function<Tensor(const Tensor&)> f) {
  return {std::move(name), {std::move(input)}, [f](const Inputs& in) { return Inputs{f(in[0])}; }};
}
Sample two(std::string name, Tensor a, Tensor b, std::function<Tensor(const Tensor&, const Tensor&)> f) {
  return {std::move(name), {std::move(a), std::move(b)}, [f](const Inputs& in) {
            return Inputs{f(in[0], in[1])};
          }};
}
Sample three(std::string name, Tensor a, Tensor b, Tensor c,
             std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)> f) {
  return {std::move(name), {std::move(a), std::move(b), std::move(c)}, [f](const Inputs& in) {
            return Inputs{f(in[0], in[1], in[2])};
          }};
}
Inputs to_vector(const std::tuple<Tensor, Tensor>& t) { return {std::get<0>(t), std::get<1>(t)}; }

}  // namespace

std::vector<Sample> pointwise_samples() {
  const std::vector<int64_t> s{5, 4};
  std::vector<Sample> all;
  using Unary = Tensor (*)(const Tensor&);
  const auto add = [&](const char* name, const Tensor& in, Unary f) { all.push_back(one(name, in, f)); };
  add("neg", x(s), [](const Tensor& a) { return -a; });
  add("relu", x(s), [](const Tensor& a) { return torch::relu(a); });
  add("gelu", x(s), [](const Tensor& a) { return torch::gelu(a); });
  add("silu", x(s), [](const Tensor& a) { return torch::silu(a); });
  add("tanh", x(s), [](const Tensor& a) { return torch::tanh(a); });
  add("sigmoid", x(s), [](const Tensor& a) { return torch::sigmoid(a); });
  add("exp", x(s), [](const Tensor& a) { return torch::exp(a); });
  add("log", positive(s), [](const Tensor& a) { return torch::log(a); });
  add("sqrt", positive(s), [](const Tensor& a) { return torch::sqrt(a); });
  add("rsqrt", positive(s), [](const Tensor& a) { return torch::rsqrt(a); });
  add("abs", x(s), [](const Tensor& a) { return torch::abs(a); });
  add("sin", x(s), [](const Tensor& a) { return torch::sin(a); });
  add("cos", x(s), [](const Tensor& a) { return torch::cos(a); });
  add("erf", x(s), [](const Tensor& a) { return torch::erf(a); });
  add("softplus", x(s), [](const Tensor& a) { return torch::softplus(a); });
  add("leaky_relu", x(s), [](const Tensor& a) { return torch::leaky_relu(a, 0.1); });
  add("elu", x(s), [](const Tensor& a) { return torch::elu(a); });
  add("hardtanh", x(s), [](const Tensor& a) { return torch::hardtanh(a); });
  add("relu6", x(s), [](const Tensor& a) { return torch::relu6(a); });
  add("hardswish", x(s), [](const Tensor& a) { return torch::hardswish(a); });
  add("hardsigmoid", x(s), [](const Tensor& a) { return torch::hardsigmoid(a); });
  add("log_sigmoid", x(s), [](const Tensor& a) { return torch::log_sigmoid(a); });
  add("mish", x(s), [](const Tensor& a) { return torch::mish(a); });
  add("square", x(s), [](const Tensor& a) { return torch::square(a); });
  add("pow scalar", positive(s), [](const Tensor& a) { return torch::pow(a, 1.5); });
  add("add scalar", x(s), [](const Tensor& a) { return a + 3; });
  add("mul scalar", x(s), [](const Tensor& a) { return a * 3; });
  add("div scalar", x(s), [](const Tensor& a) { return a / 4; });
  add("rsub", x(s), [](const Tensor& a) { return 1 - a; });
  add("clamp", x(s), [](const Tensor& a) { return torch::clamp(a, -1, 1); });
  add("floor", x(s), [](const Tensor& a) { return torch::floor(a); });
  add("sgn", x(s), [](const Tensor& a) { return torch::sgn(a); });
  add("to float", x(s), [](const Tensor& a) { return a.to(torch::kFloat); });
  add("gt scalar", x(s), [](const Tensor& a) { return a > 0; });
  add("logical_not", x(s), [](const Tensor& a) { return torch::logical_not(a); });
  add("asin", unit(s), [](const Tensor& a) { return torch::asin(a); });
  add("atanh", unit(s), [](const Tensor& a) { return torch::atanh(a / 2); });
  add("clone", x(s), [](const Tensor& a) { return a.clone(); });
  add("zeros_like", x(s), [](const Tensor& a) { return torch::zeros_like(a) + a; });
  add("ones_like", x(s), [](const Tensor& a) { return torch::ones_like(a) * a; });
  add("add_", x(s), [](const Tensor& a) { return (a * 1).add_(2); });
  add("relu_", x(s), [](const Tensor& a) { return (a * 1).relu_(); });
  add("masked_fill", x(s), [](const Tensor& a) { return a.masked_fill(a > 0, 7); });
  add("dropout eval", x(s), [](const Tensor& a) { return torch::dropout(a, 0.5, false); });

  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const auto add2 = [&](const char* name, const Tensor& a, const Tensor& b, Binary f) {
    all.push_back(two(name, a, b, f));
  };
  add2("add", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return a + b; });
  add2("add alpha", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return torch::add(a, b, 2); });
  add2("add row", x(s), x({4}, 2), [](const Tensor& a, const Tensor& b) { return a + b; });
  add2("add column", x(s), x({5, 1}, 2), [](const Tensor& a, const Tensor& b) { return a + b; });
  add2("add outer", x({5, 1}), x({1, 4}, 2), [](const Tensor& a, const Tensor& b) { return a + b; });
  add2("add 0-dim", x(s), x({}, 2), [](const Tensor& a, const Tensor& b) { return a + b; });
  add2("sub", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return a - b; });
  add2("mul", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return a * b; });
  add2("mul row", x(s), x({4}, 2), [](const Tensor& a, const Tensor& b) { return a * b; });
  add2("div", x(s), positive(s, 2), [](const Tensor& a, const Tensor& b) { return a / b; });
  add2("pow", positive(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return torch::pow(a, b); });
  add2("maximum", distinct(s), x(s, 2) + 0.001,
       [](const Tensor& a, const Tensor& b) { return torch::maximum(a, b); });
  add2("minimum", distinct(s), x(s, 2) + 0.001,
       [](const Tensor& a, const Tensor& b) { return torch::minimum(a, b); });
  add2("atan2", positive(s), positive(s, 2),
       [](const Tensor& a, const Tensor& b) { return torch::atan2(a, b); });
  add2("eq", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return a == b; });
  add2("copysign", x(s) + 0.1, x(s, 2) + 0.1,
       [](const Tensor& a, const Tensor& b) { return torch::copysign(a, b); });
  add2("prelu", x({5, 4}), x({4}, 2), [](const Tensor& a, const Tensor& b) { return torch::prelu(a, b); });
  add2("add_ tensor", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return (a * 1).add_(b); });
  add2("mul_ row", x(s), x({4}, 2), [](const Tensor& a, const Tensor& b) { return (a * 1).mul_(b); });
  add2("where", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return torch::where(a > 0, a, b); });
  add2("copy_", x(s), x({4}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::zeros_like(a).copy_(b) * a; });
  add2("mse_loss mean", x(s), x(s, 2),
       [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
  add2("mse_loss sum", x(s), x(s, 2),
       [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b, at::Reduction::Sum); });
  add2("mse_loss none", x(s), x(s, 2),
       [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b, at::Reduction::None); });
  add2("smooth_l1_loss", x(s), x(s, 2),
       [](const Tensor& a, const Tensor& b) { return torch::smooth_l1_loss(a, b); });
  add2("huber_loss", x(s), x(s, 2), [](const Tensor& a, const Tensor& b) { return torch::huber_loss(a, b); });
  add2("binary_cross_entropy", torch::sigmoid(x(s)), torch::sigmoid(x(s, 2)),
       [](const Tensor& a, const Tensor& b) { return torch::binary_cross_entropy(a, b.detach()); });
  add2("binary_cross_entropy_with_logits", x(s), torch::sigmoid(x(s, 2)),
       [](const Tensor& a, const Tensor& b) { return torch::binary_cross_entropy_with_logits(a, b); });
  add2("kl_div", x(s), positive(s, 2), [](const Tensor& a, const Tensor& b) { return torch::kl_div(a, b); });
  all.push_back(
      three("addcmul", x(s), x(s, 2), x(s, 3),
            [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::addcmul(a, b, c, 0.5); }));
  all.push_back(
      three("addcdiv", x(s), x(s, 2), positive(s, 3),
            [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::addcdiv(a, b, c, 0.5); }));
  all.push_back(three("lerp", x(s), x(s, 2), x(s, 3), [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return torch::lerp(a, b, c);
  }));
  all.push_back(three("cosine_embedding_loss", x(s), x(s, 2),
                      torch::tensor({1., -1., 1., 1., -1.}, torch::kDouble),
                      [](const Tensor& a, const Tensor& b, const Tensor& c) {
                        return torch::cosine_embedding_loss(a, b, c.detach());
                      }));
  return all;
}

std::vector<Sample> matmul_samples() {
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  std::vector<Sample> all;
  const auto add2 = [&](const char* name, const Tensor& a, const Tensor& b, Binary f) {
    all.push_back(two(name, a, b, f));
  };
  add2("mm", x({5, 4}), x({4, 6}, 2), [](const Tensor& a, const Tensor& b) { return torch::mm(a, b); });
  add2("mm transposed", x({4, 5}), x({6, 4}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::mm(a.t(), b.t()); });
  add2("bmm", x({3, 5, 4}), x({3, 4, 2}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::bmm(a, b); });
  add2("mv", x({5, 4}), x({4}, 2), [](const Tensor& a, const Tensor& b) { return torch::mv(a, b); });
  add2("dot", x({7}), x({7}, 2), [](const Tensor& a, const Tensor& b) { return torch::dot(a, b); });
  add2("outer", x({5}), x({4}, 2), [](const Tensor& a, const Tensor& b) { return torch::outer(a, b); });
  add2("matmul 3-D 2-D", x({2, 5, 4}), x({4, 3}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::matmul(a, b); });
  add2("matmul vector matrix", x({4}), x({4, 3}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::matmul(a, b); });
  add2("matmul batched", x({2, 3, 5, 4}), x({3, 4, 2}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::matmul(a, b); });
  add2("linear", x({2, 5, 4}), x({3, 4}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::linear(a, b); });
  add2("einsum", x({2, 3, 4}), x({2, 5, 4}, 2),
       [](const Tensor& a, const Tensor& b) { return torch::einsum("bik,bjk->bij", {a, b}); });
  add2("kron", x({2, 3}), x({3, 2}, 2), [](const Tensor& a, const Tensor& b) { return torch::kron(a, b); });
  const auto add3 = [&](const char* name, const Tensor& a, const Tensor& b, const Tensor& c,
                        Tensor (*f)(const Tensor&, const Tensor&, const Tensor&)) {
    all.push_back(three(name, a, b, c, f));
  };
  add3("addmm", x({6}), x({5, 4}, 2), x({4, 6}, 3),
       [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::addmm(a, b, c, 0.5, 2); });
  add3("baddbmm", x({3, 5, 2}), x({3, 5, 4}, 2), x({3, 4, 2}, 3),
       [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::baddbmm(a, b, c); });
  add3("addbmm", x({5, 2}), x({3, 5, 4}, 2), x({3, 4, 2}, 3),
       [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::addbmm(a, b, c); });
  add3("addmv", x({5}), x({5, 4}, 2), x({4}, 3),
       [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::addmv(a, b, c); });
  add3("linear with bias", x({5, 4}), x({3, 4}, 2), x({3}, 3),
       [](const Tensor& a, const Tensor& b, const Tensor& c) { return torch::linear(a, b, c); });
  return all;
}

std::vector<Sample> reduction_samples() {
  const std::vector<int64_t> s{5, 3, 4};
  std::vector<Sample> all;
  using Unary = Tensor (*)(const Tensor&);
  const auto add = [&](const char* name, const Tensor& in, Unary f) { all.push_back(one(name, in, f)); };
  add("sum", x(s), [](const Tensor& a) { return a.sum(); });
  add("sum dim", x(s), [](const Tensor& a) { return a.sum(1); });
  add("sum dims keepdim", x(s), [](const Tensor& a) { return a.sum(torch::IntArrayRef({0, 2}), true); });
  add("mean", x(s), [](const Tensor& a) { return a.mean(); });
  add("mean dim", x(s), [](const Tensor& a) { return a.mean(0); });
  add("mean of 0-dim", x({}), [](const Tensor& a) { return a.mean(); });
  add("sum of 0-dim", x({}), [](const Tensor& a) { return a.sum(); });
  add("prod", positive(s), [](const Tensor& a) { return a.prod(); });
  add("prod dim", positive(s), [](const Tensor& a) { return a.prod(0); });
  add("amax", distinct(s), [](const Tensor& a) { return a.amax(torch::IntArrayRef({0})); });
  add("amin", distinct(s), [](const Tensor& a) { return a.amin(torch::IntArrayRef({0, 1}), true); });
  add("max", distinct(s), [](const Tensor& a) { return a.max(); });
  add("min", distinct(s), [](const Tensor& a) { return a.min(); });
  all.push_back({"max dim", {distinct(s)}, [](const Inputs& in) { return to_vector(in[0].max(0)); }});
  all.push_back(
      {"min dim keepdim", {distinct(s)}, [](const Inputs& in) { return to_vector(in[0].min(1, true)); }});
  all.push_back({"topk", {distinct(s)}, [](const Inputs& in) { return to_vector(in[0].topk(2, 0)); }});
  all.push_back({"sort", {distinct(s)}, [](const Inputs& in) { return to_vector(in[0].sort(0)); }});
  add("argmax", distinct(s), [](const Tensor& a) { return a.argmax(0); });
  add("argmax all", distinct(s), [](const Tensor& a) { return a.argmax(); });
  add("any", x(s), [](const Tensor& a) { return (a > 1).any(); });
  add("all dim", x(s), [](const Tensor& a) { return (a > -1).all(0); });
  add("count_nonzero", x(s), [](const Tensor& a) { return torch::count_nonzero(a); });
  add("var", x(s), [](const Tensor& a) { return a.var(); });
  add("var dim", x(s), [](const Tensor& a) { return a.var(0, false); });
  add("std dim", x(s), [](const Tensor& a) { return a.std(torch::IntArrayRef({0}), true, true); });
  add("norm", x(s), [](const Tensor& a) { return a.norm(); });
  add("norm 3 dim", x(s) + 0.1, [](const Tensor& a) { return a.norm(3, 0); });
  add("norm inf", distinct(s), [](const Tensor& a) { return torch::linalg_vector_norm(a, INFINITY); });
  add("logsumexp", x(s), [](const Tensor& a) { return torch::logsumexp(a, 0); });
  add("cumsum", x(s), [](const Tensor& a) { return a.cumsum(0); });
  add("cumprod", positive(s), [](const Tensor& a) { return a.cumprod(1); });
  add("softmax", x(s), [](const Tensor& a) { return torch::softmax(a, 0); });
  add("softmax last", x(s), [](const Tensor& a) { return torch::softmax(a, -1); });
  add("log_softmax", x(s), [](const Tensor& a) { return torch::log_softmax(a, 1); });
  add("quantile", distinct({9}), [](const Tensor& a) { return torch::quantile(a, 0.3); });
  add("median", distinct({9}), [](const Tensor& a) { return a.median(); });
  return all;
}

std::vector<Sample> view_samples() {
  std::vector<Sample> all;
  using Unary = Tensor (*)(const Tensor&);
  const auto add = [&](const char* name, const Tensor& in, Unary f) { all.push_back(one(name, in, f)); };
  add("view split", x({6, 4}), [](const Tensor& a) { return a.view({2, 3, 4}); });
  add("view merge", x({2, 3, 4}), [](const Tensor& a) { return a.view({6, 4}); });
  add("view flat", x({5, 4}), [](const Tensor& a) { return a.view({-1}); });
  add("view regroup", x({4, 6}), [](const Tensor& a) { return a.view({6, 4}); });
  add("reshape transposed", x({5, 4}), [](const Tensor& a) { return a.t().reshape({2, 10}); });
  add("flatten", x({2, 3, 4}), [](const Tensor& a) { return a.flatten(1); });
  add("unflatten", x({8, 3}), [](const Tensor& a) { return a.unflatten(0, {4, 2}); });
  add("transpose", x({5, 4}), [](const Tensor& a) { return a.transpose(0, 1); });
  add("permute", x({2, 3, 4}), [](const Tensor& a) { return a.permute({2, 0, 1}); });
  add("movedim", x({2, 3, 4}), [](const Tensor& a) { return a.movedim(0, 2); });
  add("squeeze", x({5, 1, 4}), [](const Tensor& a) { return a.squeeze(1); });
  add("squeeze all", x({1, 5, 1}), [](const Tensor& a) { return a.squeeze(); });
  add("unsqueeze", x({5, 4}), [](const Tensor& a) { return a.unsqueeze(1); });
  add("expand", x({5, 1}), [](const Tensor& a) { return a.expand({3, 5, 4}) * 1; });
  add("expand same", x({5, 4}), [](const Tensor& a) { return a.expand({-1, -1}) * 2; });
  add("repeat", x({5, 4}), [](const Tensor& a) { return a.repeat({2, 1, 3}); });
  add("select", x({5, 4}), [](const Tensor& a) { return a.select(0, 3); });
  add("slice", x({7, 4}), [](const Tensor& a) { return a.slice(0, 1, 6, 2); });
  add("slice all", x({5, 4}), [](const Tensor& a) { return a.slice(0, 0, 5); });
  add("narrow", x({5, 4}), [](const Tensor& a) { return a.narrow(1, 1, 2); });
  all.push_back({"split", {x({7, 4})}, [](const Inputs& in) { return in[0].split(3, 0); }});
  all.push_back({"chunk", {x({4, 7})}, [](const Inputs& in) { return in[0].chunk(3, 1); }});
  all.push_back({"unbind", {x({3, 4})}, [](const Inputs& in) { return in[0].unbind(0); }});
  add("diagonal", x({5, 4}), [](const Tensor& a) { return a.diagonal(); });
  add("tril", x({5, 4}), [](const Tensor& a) { return a.tril(); });
  add("triu", x({3, 5, 4}), [](const Tensor& a) { return a.triu(1); });
  add("flip", x({5, 4}), [](const Tensor& a) { return a.flip({0}); });
  add("roll", x({5, 4}), [](const Tensor& a) { return a.roll({2}, {0}); });
  add("rot90", x({5, 4}), [](const Tensor& a) { return a.rot90(); });
  add("contiguous transposed", x({5, 4}), [](const Tensor& a) { return a.t().contiguous(); });
  add("pad", x({5, 4}), [](const Tensor& a) { return torch::constant_pad_nd(a, {1, 2}, 3); });
  add("unfold", x({7, 4}), [](const Tensor& a) { return a.unfold(0, 3, 2); });
  all.push_back({"cat", {x({5, 4}), x({3, 4}, 2)}, [](const Inputs& in) {
                   return Inputs{torch::cat({in[0], in[1]}, 0)};
                 }});
  all.push_back({"cat 1", {x({5, 4}), x({5, 2}, 2)}, [](const Inputs& in) {
                   return Inputs{torch::cat({in[0], in[1]}, 1)};
                 }});
  all.push_back({"stack", {x({5, 4}), x({5, 4}, 2)}, [](const Inputs& in) {
                   return Inputs{torch::stack({in[0], in[1]}, 1)};
                 }});
  all.push_back({"meshgrid", {x({3}), x({4}, 2)}, [](const Inputs& in) {
                   return torch::meshgrid({in[0], in[1]}, "ij");
                 }});
  return all;
}

std::vector<Sample> index_samples() {
  std::vector<Sample> all;
  const auto add2 = [&](const char* name, const Tensor& a, const Tensor& b,
                        std::function<Tensor(const Tensor&, const Tensor&)> f) {
    all.push_back(two(name, a, b, std::move(f)));
  };
  add2("embedding", x({7, 4}), index({2, 5}, 7),
       [](const Tensor& w, const Tensor& i) { return torch::embedding(w, i); });
  add2("index_select", x({7, 4}), index({5}, 7),
       [](const Tensor& a, const Tensor& i) { return a.index_select(0, i); });
  add2("index_select 1", x({5, 7}), index({4}, 7),
       [](const Tensor& a, const Tensor& i) { return a.index_select(1, i); });
  add2("gather", x({7, 4}), index({5, 4}, 7),
       [](const Tensor& a, const Tensor& i) { return a.gather(0, i); });
  add2("take_along_dim", x({7, 4}), index({7, 3}, 4),
       [](const Tensor& a, const Tensor& i) { return torch::take_along_dim(a, i, 1); });
  add2("index tensor", x({7, 4}), index({5}, 7),
       [](const Tensor& a, const Tensor& i) { return a.index({i}); });
  add2("one_hot", x({5}), index({5}, 4),
       [](const Tensor& a, const Tensor& i) { return torch::one_hot(i, 4) * a.unsqueeze(1); });
  add2("scatter", x({5, 4}), index({5, 4}, 5),
       [](const Tensor& a, const Tensor& i) { return torch::zeros_like(a).scatter(0, i, a); });
  add2("scatter_add", x({5, 4}), index({5, 4}, 5),
       [](const Tensor& a, const Tensor& i) { return torch::zeros_like(a).scatter_add(0, i, a); });
  add2("index_add", x({5, 4}), index({5}, 5),
       [](const Tensor& a, const Tensor& i) { return torch::zeros_like(a).index_add(0, i, a); });
  add2("index_put", x({5, 4}), torch::tensor({1, 3, 0, 2, 4}),
       [](const Tensor& a, const Tensor& i) { return torch::zeros_like(a).index_put({i}, a * 2); });
  all.push_back(one("masked_select", x({5, 4}), [](const Tensor& a) { return a.masked_select(a > 0); }));
  all.push_back(one("nonzero", x({5, 4}), [](const Tensor& a) { return a.nonzero(); }));
  all.push_back(one("bincount", index({9}, 5), [](const Tensor& a) { return torch::bincount(a); }));
  all.push_back({"unique", {x({9})}, [](const Inputs& in) {
                   return Inputs{std::get<0>(torch::_unique(in[0].detach()))};
                 }});
  add2("nll_loss", x({5, 4}), index({5}, 4),
       [](const Tensor& a, const Tensor& i) { return torch::nll_loss(torch::log_softmax(a, 1), i); });
  add2("cross_entropy", x({5, 4}), index({5}, 4),
       [](const Tensor& a, const Tensor& i) { return torch::cross_entropy_loss(a, i); });
  add2("cross_entropy sum", x({5, 4}), index({5}, 4), [](const Tensor& a, const Tensor& i) {
    return torch::cross_entropy_loss(a, i, {}, at::Reduction::Sum);
  });
  add2("cross_entropy ignore", x({5, 4}), index({5}, 4), [](const Tensor& a, const Tensor& i) {
    return torch::cross_entropy_loss(a, i, {}, at::Reduction::Mean, 2);
  });
  return all;
}

std::vector<Sample> network_samples() {
  std::vector<Sample> all;
  const auto add3 = [&](const char* name, const Tensor& a, const Tensor& b, const Tensor& c,
                        Tensor (*f)(const Tensor&, const Tensor&, const Tensor&)) {
    all.push_back(three(name, a, b, c, f));
  };
  add3("layer_norm", x({3, 5, 4}), x({4}, 2), x({4}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) { return torch::layer_norm(a, {4}, w, b); });
  add3("group_norm", x({3, 4, 5}), x({4}, 2), x({4}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) { return torch::group_norm(a, 2, w, b); });
  add3("batch_norm", x({5, 4, 3}), x({4}, 2), x({4}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) {
         return torch::batch_norm(a, w, b, {}, {}, true, 0.1, 1e-5, false);
       });
  all.push_back(two("rms_norm", x({3, 5, 4}) + 0.1, x({4}, 2),
                    [](const Tensor& a, const Tensor& w) { return torch::rms_norm(a, {4}, w); }));
  add3("conv1d", x({3, 4, 7}), x({6, 4, 3}, 2), x({6}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) { return torch::conv1d(a, w, b, {1}, {1}); });
  add3("conv2d", x({3, 4, 5, 5}), x({6, 4, 3, 3}, 2), x({6}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) { return torch::conv2d(a, w, b); });
  add3("conv2d grouped", x({3, 4, 5, 5}), x({6, 2, 3, 3}, 2), x({6}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) {
         return torch::conv2d(a, w, b, at::IntArrayRef({1, 1}), at::IntArrayRef({0, 0}),
                              at::IntArrayRef({1, 1}), 2);
       });
  add3("conv_transpose2d", x({3, 4, 5, 5}), x({4, 6, 3, 3}, 2), x({6}, 3),
       [](const Tensor& a, const Tensor& w, const Tensor& b) { return torch::conv_transpose2d(a, w, b); });
  all.push_back(
      one("max_pool2d", distinct({3, 4, 6, 6}), [](const Tensor& a) { return torch::max_pool2d(a, 2); }));
  all.push_back(one("avg_pool2d", x({3, 4, 6, 6}), [](const Tensor& a) { return torch::avg_pool2d(a, 2); }));
  all.push_back(one("adaptive_avg_pool2d", x({3, 4, 6, 6}),
                    [](const Tensor& a) { return torch::adaptive_avg_pool2d(a, {2, 3}); }));
  all.push_back(one("upsample_nearest2d", x({3, 4, 3, 3}),
                    [](const Tensor& a) { return torch::upsample_nearest2d(a, {6, 6}); }));
  all.push_back(one("reflection_pad1d", x({3, 4, 5}),
                    [](const Tensor& a) { return torch::reflection_pad1d(a, {2, 1}); }));
  all.push_back(
      one("pixel_shuffle", x({3, 4, 2, 2}), [](const Tensor& a) { return torch::pixel_shuffle(a, 2); }));
  add3("attention", x({2, 3, 5, 4}), x({2, 3, 6, 4}, 2), x({2, 3, 6, 4}, 3),
       [](const Tensor& q, const Tensor& k, const Tensor& v) {
         return torch::scaled_dot_product_attention(q, k, v);
       });
  add3("attention causal", x({2, 3, 5, 4}), x({2, 3, 5, 4}, 2), x({2, 3, 5, 4}, 3),
       [](const Tensor& q, const Tensor& k, const Tensor& v) {
         return torch::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
       });
  add3("attention grouped heads", x({2, 4, 5, 4}), x({2, 2, 5, 4}, 2), x({2, 2, 5, 4}, 3),
       [](const Tensor& q, const Tensor& k, const Tensor& v) {
         return torch::scaled_dot_product_attention(q, k, v, {}, 0.0, true, std::nullopt, true);
       });
  all.push_back(one("inverse", x({3, 3}) + 4 * torch::eye(3, torch::kDouble),
                    [](const Tensor& a) { return torch::inverse(a); }));
  all.push_back(one("fft", x({5, 4}), [](const Tensor& a) { return torch::real(torch::fft_fft(a)); }));
  return all;
}

Run run_sample(const Sample& sample, std::vector<Tensor> inputs,
               const std::function<Tensor(const Tensor&)>& as_weight) {
  std::vector<Tensor> leaves;
  for (Tensor& t : inputs) {
    t = t.detach();
    if (t.is_floating_point()) leaves.push_back(t.requires_grad_());
  }
  Run done{sample.run(inputs), {}};
  Tensor loss;
  for (const Tensor& r : done.results) {
    if (!r.requires_grad()) continue;
    const Tensor part = (r * as_weight(numbers(r.sizes(), r.scalar_type(), 7))).sum();
    loss = loss.defined() ? loss + part : part;
  }
  if (loss.defined())
    done.gradients = torch::autograd::grad({loss}, leaves, {}, {}, false, /*allow_unused=*/true);
  return done;
}

std::vector<Sample> all_samples() {
  std::vector<Sample> all;
  for (auto* family :
       {pointwise_samples, matmul_samples, reduction_samples, view_samples, index_samples, network_samples}) {
    for (Sample& sample : family()) all.push_back(std::move(sample));
  }
  return all;
}

}  // namespace meshtorch::testing
