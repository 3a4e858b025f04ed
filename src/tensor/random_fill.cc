// Fills this rank's shard with random numbers that depend on global indices only.
#include "tensor/random_fill.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backends/wire.h"
#include "core/shard_indices.h"
#include "runtime/host_tensor.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// Elements whose words are made at once.
constexpr std::size_t kBlock = 16;
// Elements that are worth a thread.
constexpr std::int64_t kGrain = 16384;

// Sets elements [begin, end) of the shard to value_of(words).
template <typename T, typename ValueOf>
void fill_part(T* out, std::int64_t begin, std::int64_t end, const ShardIndices& shard,
               const RandomCall& call, const ValueOf& value_of) {
  std::array<std::uint64_t, kBlock> index{};
  std::size_t filled = 0;
  T* next = out + begin;
  const auto flush = [&] {
    const PhiloxBlock<kBlock> block = random_words<kBlock>(call, index);
    std::array<T, kBlock> values;  // all of them: a loop of fixed length is made of vector instructions
    for (std::size_t i = 0; i < kBlock; ++i) {
      values[i] =
          value_of(RandomWords{block.word[0][i], block.word[1][i], block.word[2][i], block.word[3][i]});
    }
    next = std::copy_n(values.begin(), filled, next);
    filled = 0;
  };
  shard.visit_runs(begin, end, [&](std::int64_t first, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) {
      index[filled++] = static_cast<std::uint64_t>(first + i);
      if (filled == kBlock) flush();
    }
  });
  flush();
}

class Filler {
 public:
  Filler(const at::Tensor& local, const ShardIndices& shard, const RandomCall& call)
      : local_(local), shard_(shard), call_(call) {}

  // Draws values of type T, and converts them if the tensor is of another type, lies otherwise, or on a
  // device.
  template <typename T, typename ValueOf>
  void fill(const ValueOf& value_of) const {
    constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
    const bool is_direct = local_.scalar_type() == kType && local_.is_cpu() && lies_in_order(local_);
    const at::Tensor values = is_direct ? local_ : at::empty(local_.sizes(), on_host(kType));
    T* out = values.data_ptr<T>();
    at::parallel_for(0, shard_.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      fill_part(out, begin, end, shard_, call_, value_of);
    });
    if (!is_direct) local_.copy_(values);
  }

  template <typename ValueOf>
  void fill_real(const ValueOf& value_of) const {
    if (local_.scalar_type() == at::kDouble ||
        at::isIntegralType(local_.scalar_type(), /*includeBool=*/true)) {
      fill<double>(value_of);
    } else {
      fill<float>([&](const RandomWords& w) { return static_cast<float>(value_of(w)); });
    }
  }

  void uniform(double from, double to) const {
    const auto fill_complex = [&]<typename Real>(Real) {
      constexpr int kDigits = std::numeric_limits<Real>::digits;
      fill<c10::complex<Real>>([=](const RandomWords& w) {
        return c10::complex<Real>(between<Real>(unit<kDigits>(w[0], w[1]), from, to),
                                  between<Real>(unit<kDigits>(w[2], w[3]), from, to));
      });
    };
    if (local_.scalar_type() == at::kComplexFloat) return fill_complex(float());
    if (local_.scalar_type() == at::kComplexDouble) return fill_complex(double());
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, local_.scalar_type(), "uniform", [&] {
      constexpr int kDigits = std::numeric_limits<scalar_t>::digits;
      fill<scalar_t>(
          [=](const RandomWords& w) { return between<scalar_t>(unit<kDigits>(w[0], w[1]), from, to); });
    });
  }

  // A complex number has half its variance in each part.
  void normal(double mean, double deviation) const {
    const auto fill_complex = [&]<typename Real>(Real) {
      const double part = deviation * 0.70710678118654752440;
      fill<c10::complex<Real>>([=](const RandomWords& w) {
        const NormalPair pair = normal_pair(w);
        return c10::complex<Real>(static_cast<Real>(mean + part * pair.first),
                                  static_cast<Real>(part * pair.second));
      });
    };
    if (local_.scalar_type() == at::kComplexFloat) return fill_complex(float());
    if (local_.scalar_type() == at::kComplexDouble) return fill_complex(double());
    fill_real([=](const RandomWords& w) { return mean + deviation * standard_normal(w); });
  }

 private:
  // In [from, to): what rounds up to the end becomes the beginning.
  template <typename T>
  static T between(double part, double from, double to) {
    using Wide =
        std::conditional_t<std::is_same_v<T, double>, double, float>;  // half types convert from float
    const T value(static_cast<Wide>(from + part * (to - from)));
    return from < to && value >= T(static_cast<Wide>(to)) ? T(static_cast<Wide>(from)) : value;
  }

  const at::Tensor& local_;
  const ShardIndices& shard_;
  const RandomCall& call_;
};

}  // namespace

void fill_random(const at::Tensor& local, c10::IntArrayRef sizes, const Layout& layout,
                 const RandomCall& call, const Distribution& distribution) {
  if (local.is_meta()) return;
  const ShardIndices shard(sizes.vec(), layout.placements, layout.mesh->shape(), coordinate_in(*layout.mesh));
  TORCH_INTERNAL_ASSERT(shard.count() == local.numel(), "a shard of ", local.numel(),
                        " elements, which should have ", shard.count());
  const Filler filler(local, shard, call);
  const double a = distribution.a;
  const double b = distribution.b;
  using Kind = Distribution::Kind;
  switch (distribution.kind) {
    case Kind::uniform:
      return filler.uniform(a, b);
    case Kind::normal:
      return filler.normal(a, b);
    case Kind::integers:
      return filler.fill<std::int64_t>([low = distribution.low, span = distribution.span](
                                           const RandomWords& w) { return integer_of(w, low, span); });
    case Kind::bernoulli:
      return filler.fill<bool>([=](const RandomWords& w) { return bernoulli_of(w, a); });
    case Kind::exponential:
      return filler.fill_real([=](const RandomWords& w) { return exponential_of(w, a); });
    case Kind::geometric:
      return filler.fill_real(
          [log_failure = portable_log1p(-a)](const RandomWords& w) { return geometric_of(w, log_failure); });
    case Kind::log_normal:
      return filler.fill_real([=](const RandomWords& w) { return log_normal_of(w, a, b); });
    case Kind::cauchy:
      return filler.fill_real([=](const RandomWords& w) { return cauchy_of(w, a, b); });
  }
}

}  // namespace meshtorch::internal
