// Random distributed tensors: the state of a rank and the factories.
#include "meshtorch/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ops/empty.h>

#include <functional>
#include <limits>
#include <mutex>
#include <utility>

#include "core/random_source.h"
#include "runtime/hidden_from_modes.h"
#include "runtime/host_tensor.h"
#include "tensor/execute.h"
#include "tensor/meta.h"
#include "tensor/new_sizes.h"
#include "tensor/random.h"
#include "tensor/random_fill.h"
#include "tensor/redistribute.h"
#include "world/agree.h"
#include "world/rank_context.h"

namespace meshtorch {
using namespace internal;
namespace {

static_assert(kFirstSeed == kDefaultSeed);

thread_local std::optional<at::Generator> given_generator;

template <typename Use>
auto with_random_source(const Use& use) {
  const auto context = current_rank_or_null();
  return use(context ? context->random() : starting_random());
}

using MakeLocal = std::function<at::Tensor(const Layout& layout, const at::TensorOptions& options)>;

DTensor make_random(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
                    const at::TensorOptions& options, const MakeLocal& make) {
  const Layout* layout = checked_layout(impl_of(mesh), placements, static_cast<std::int64_t>(size.size()));
  const at::TensorOptions on_device = options.has_device() ? options : options.device(mesh.device_type());
  const at::Tensor local = make(*layout, on_device.requires_grad(false));
  return wrap(local, layout, size, dense_strides(size)).requires_grad_(options.requires_grad());
}

void declare_seed(std::uint64_t seed) {
  if (current_rank_or_null() == nullptr) return;
  CallHash hash;
  hash.add("manual_seed");
  hash.add(seed);
  const Group all;
  log_local_call(
      all.ranks(), hash, [seed] { return c10::str("manual_seed(", seed, ")"); }, [&] { return all; });
}

}  // namespace

at::Tensor RngState::to_tensor() const {
  at::Tensor bytes = at::empty({16}, on_host(at::kByte));
  std::uint8_t* out = bytes.data_ptr<std::uint8_t>();
  for (const std::uint64_t value : {seed, call}) {
    for (int shift = 0; shift < 64; shift += 8) *out++ = static_cast<std::uint8_t>(value >> shift);
  }
  return bytes;
}

RngState RngState::from_tensor(const at::Tensor& bytes) {
  TORCH_CHECK_VALUE(bytes.scalar_type() == at::kByte && bytes.dim() == 1 && bytes.numel() == 16,
                    "meshtorch: a random state is 16 bytes, not a tensor of type ", bytes.scalar_type(),
                    " and shape ", bytes.sizes(),
                    "\n  in: RngState::from_tensor\n  do: pass what RngState::to_tensor gave");
  const at::Tensor in_order = bytes.cpu().contiguous();
  const std::uint8_t* in = in_order.const_data_ptr<std::uint8_t>();
  const auto next = [&in] {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 8) value |= static_cast<std::uint64_t>(*in++) << shift;
    return value;
  };
  const std::uint64_t seed = next();
  return {.seed = seed, .call = next()};
}

void manual_seed(std::uint64_t seed) {
  declare_seed(seed);
  set_rng_state({.seed = seed, .call = 0});
}

RngState get_rng_state() {
  const RandomCall next = with_random_source([](const RandomSource& source) { return source.peek(); });
  return {.seed = next.seed, .call = next.number};
}

void set_rng_state(const RngState& state) {
  with_random_source([&](RandomSource& source) { source.set({.seed = state.seed, .number = state.call}); });
}

RandomCall internal::take_random_call() {
  if (given_generator) {
    const std::lock_guard<std::mutex> lock(given_generator->mutex());
    return {.seed = at::check_generator<at::CPUGeneratorImpl>(given_generator)->random64(), .number = 0};
  }
  return with_random_source([](RandomSource& source) { return source.take(); });
}

at::Tensor internal::random_local(const Shape& sizes, const Layout& layout, const at::TensorOptions& options,
                                  const Distribution& distribution) {
  const HiddenFromModes hidden;
  check_new_sizes(sizes);
  const Layout* whole = layout.mesh->layout(gradient_placements(layout.placements));
  const at::Tensor local = at::empty(local_shape_of(sizes, *whole), options);
  fill_random(local, sizes, *whole, take_random_call(), distribution);
  return redistribute_local(local, sizes, *whole, layout);
}

at::Tensor internal::random_tensor(const Shape& sizes, const Layout& layout, const at::TensorOptions& options,
                                   const Distribution& distribution) {
  return wrap(random_local(sizes, layout, options, distribution), &layout, sizes, dense_strides(sizes));
}

// Fisher and Yates: element i changes places with a random one of those up to it.
at::Tensor internal::random_permutation(std::int64_t n) {
  TORCH_CHECK_VALUE(n >= 0, "meshtorch: a permutation has no ", n,
                    " elements\n  in: randperm\n  do: pass n >= 0");
  const RandomCall call = take_random_call();
  const at::Tensor permutation = at::empty({n}, on_host(at::kLong));
  std::int64_t* order = permutation.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    order[i] = i;
    std::swap(order[i], order[integer_of(random_words(call, index), 0, index + 1)]);
  }
  return permutation;
}

DrawsFrom::DrawsFrom(const char* op, const std::optional<at::Generator>& generator)
    : before_(given_generator) {
  if (!generator || !generator->defined()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(generator->device().is_cpu(), "meshtorch: `", op, "` got a generator of ",
                              generator->device(), "\n  argument: generator\n  do: pass one of the CPU");
  given_generator = *generator;
}

DrawsFrom::~DrawsFrom() { given_generator = std::move(before_); }

void internal::check_integers(std::int64_t least, std::int64_t largest, at::ScalarType type) {
  using Wide = long double;  // holds all 64 bits
  const bool fits = AT_DISPATCH_V2(type, "integers", AT_WRAP([&]() -> bool {
                                     using Limits = std::numeric_limits<scalar_t>;
                                     return static_cast<Wide>(least) >= static_cast<Wide>(Limits::lowest()) &&
                                            static_cast<Wide>(largest) <= static_cast<Wide>(Limits::max());
                                   }),
                                   AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool,
                                   at::kHalf, at::kBFloat16);
  TORCH_CHECK_VALUE(fits, "meshtorch: type ", type, " does not hold the integers from ", least, " to ",
                    largest,
                    "\n  in: a call that draws integers\n  do: pass bounds inside the type, or a wider type");
}

Distribution internal::integers_between(std::int64_t low, std::int64_t high, at::ScalarType type) {
  TORCH_CHECK_VALUE(
      low < high, "meshtorch: there is no integer from ", low, " to below ", high,
      "\n  in: a call that draws integers\n  do: pass a lower bound that is less than the upper one");
  check_integers(low, high - 1, type);
  return Distribution::integers(low, static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low));
}

DTensor rand(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
             const at::TensorOptions& options) {
  return make_random(size, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    return random_local(size, layout, o, Distribution::uniform(0, 1));
  });
}

DTensor randn(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
              const at::TensorOptions& options) {
  return make_random(size, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    return random_local(size, layout, o, Distribution::normal(0, 1));
  });
}

DTensor randint(std::int64_t low, std::int64_t high, const Shape& size, const DeviceMesh& mesh,
                const Placements& placements, const at::TensorOptions& options) {
  return make_random(size, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    const at::TensorOptions typed = o.has_dtype() ? o : o.dtype(at::kLong);
    return random_local(size, layout, typed,
                        integers_between(low, high, c10::typeMetaToScalarType(typed.dtype())));
  });
}

DTensor randint(std::int64_t high, const Shape& size, const DeviceMesh& mesh, const Placements& placements,
                const at::TensorOptions& options) {
  return randint(0, high, size, mesh, placements, options);
}

DTensor randperm(std::int64_t n, const DeviceMesh& mesh, const Placements& placements,
                 const at::TensorOptions& options) {
  return make_random({n}, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    const at::Tensor all = random_permutation(n).to(o.has_dtype() ? o : o.dtype(at::kLong));
    const at::Tensor local = redistribute_local(all, {n}, *layout.mesh->replicated(), layout);
    return local.is_alias_of(all) && local.numel() != n ? local.clone() : local;
  });
}

}  // namespace meshtorch
