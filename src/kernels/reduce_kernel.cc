// Elementwise reduction of plain memory in blocks that stay in the first cache. Compiled for speed, so that
// the loops become vector instructions.
#include "kernels/reduce_kernel.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#else
#include <c10/util/Half.h>
#endif

#include "kernels/bulk_copy.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kBlock = 1024;

// Element types whose numbers are computed with as they are, and those that are bits of a float.
template <class T>
struct Plain {
  using Element = T;
  using Number = T;
  static void load(const T* from, T* to, std::size_t n) { std::memcpy(to, from, n * sizeof(T)); }
  static void store(const T* from, T* to, std::size_t n) { std::memcpy(to, from, n * sizeof(T)); }
};

struct BrainFloat {
  using Element = std::uint16_t;
  using Number = float;
  static void load(const Element* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
  }
  // To the nearest, ties to even.
  static void store(const float* from, Element* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(from[i]);
      const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
      const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
      to[i] = static_cast<Element>(is_nan ? 0x7FC0U : rounded);
    }
  }
};

struct HalfFloat {
  using Element = std::uint16_t;
  using Number = float;
#if defined(__x86_64__)
  __attribute__((target("avx,f16c"))) static void load(const Element* from, float* to, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
    }
    for (; i < n; ++i) to[i] = _cvtsh_ss(from[i]);
  }
  __attribute__((target("avx,f16c"))) static void store(const float* from, Element* to, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
    }
    for (; i < n; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
  }
#else
  static void load(const Element* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = c10::Half(from[i], c10::Half::from_bits());
  }
  static void store(const float* from, Element* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = c10::Half(from[i]).x;
  }
#endif
};

template <class N>
bool is_nan(N number) {
  if constexpr (std::is_floating_point_v<N>) return number != number;
  return false;
}

template <class Type>
void combine(typename Type::Number* sum, const typename Type::Number* term, std::size_t n, ReduceOp op) {
  using N = typename Type::Number;
  const auto each = [&](auto function) {
    for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<N>(function(sum[i], term[i]));
  };
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return each([](N a, N b) { return a + b; });
    case ReduceOp::product:
      return each([](N a, N b) { return a * b; });
    case ReduceOp::min:  // NaN wins, as in at::minimum
      return each([](N a, N b) { return a <= b || is_nan(a) ? a : b; });
    case ReduceOp::max:
      return each([](N a, N b) { return a >= b || is_nan(a) ? a : b; });
    default:
      break;
  }
  if constexpr (std::is_integral_v<N>) {
    if (op == ReduceOp::band) return each([](N a, N b) { return a & b; });
    if (op == ReduceOp::bor) return each([](N a, N b) { return a | b; });
    if (op == ReduceOp::bxor) return each([](N a, N b) { return a ^ b; });
  }
  TORCH_INTERNAL_ASSERT(false, "reduction ", to_string(op));
}

template <class Type>
void reduce_blocks(char* out, std::span<const char* const> terms, std::size_t bytes, ReduceOp op) {
  using Element = typename Type::Element;
  using Number = typename Type::Number;
  alignas(64) Number sum[kBlock];
  alignas(64) Number term[kBlock];
  alignas(64) Element rounded[kBlock];
  const std::size_t count = bytes / sizeof(Element);
  // What is written over a term is in the cache already.
  const bool past_caches = is_more_than_a_cache(bytes) && std::ranges::find(terms, out) == terms.end();
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    const auto block_of = [&](const char* memory) {
      return reinterpret_cast<const Element*>(memory) + begin;
    };
    Type::load(block_of(terms[0]), sum, n);
    for (const char* memory : terms.subspan(1)) {
      if constexpr (std::is_same_v<Element, Number>) {
        combine<Type>(sum, block_of(memory), n, op);
      } else {
        Type::load(block_of(memory), term, n);
        combine<Type>(sum, term, n, op);
      }
    }
    if (op == ReduceOp::avg) {
      const auto divisor = static_cast<Number>(terms.size());
      for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<Number>(sum[i] / divisor);
    }
    Element* to = reinterpret_cast<Element*>(out) + begin;
    Type::store(sum, past_caches ? rounded : to, n);
    if (past_caches)
      store_past_caches(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(rounded),
                        n * sizeof(Element));
  }
  if (past_caches) finish_stores();
}

bool has_half() {
#if defined(__x86_64__)
  static const bool has = [] {  // clang 14 knows no "f16c" to ask for
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return static_cast<bool>(__builtin_cpu_supports("avx")) && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
           (c & bit_F16C) != 0;
  }();
  return has;
#else
  return true;
#endif
}

using Kernel = void (*)(char*, std::span<const char* const>, std::size_t, ReduceOp);

Kernel kernel_for(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return &reduce_blocks<Plain<float>>;
    case c10::ScalarType::Double:
      return &reduce_blocks<Plain<double>>;
    case c10::ScalarType::BFloat16:
      return &reduce_blocks<BrainFloat>;
    case c10::ScalarType::Half:
      return has_half() ? &reduce_blocks<HalfFloat> : nullptr;
    case c10::ScalarType::Char:
      return &reduce_blocks<Plain<std::int8_t>>;
    case c10::ScalarType::Byte:
      return &reduce_blocks<Plain<std::uint8_t>>;
    case c10::ScalarType::Short:
      return &reduce_blocks<Plain<std::int16_t>>;
    case c10::ScalarType::Int:
      return &reduce_blocks<Plain<std::int32_t>>;
    case c10::ScalarType::Long:
      return &reduce_blocks<Plain<std::int64_t>>;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_reduce_kernel(c10::ScalarType type) { return kernel_for(type) != nullptr; }

void reduce_memory(char* out, std::span<const char* const> terms, std::size_t bytes, c10::ScalarType type,
                   ReduceOp op) {
  const Kernel kernel = kernel_for(type);
  TORCH_INTERNAL_ASSERT(kernel != nullptr);
  kernel(out, terms, bytes, op);
}

}  // namespace meshtorch::internal
