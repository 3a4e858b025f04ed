// What local_map does with a function of any signature: which values go in and come out, and how they lie.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/detail/leaves.h"
#include "meshtorch/dtensor.h"

namespace meshtorch::detail {

// The parameters of a callable that has one signature.
template <class F>
struct SignatureOf {};
template <class R, class... A>
struct SignatureOf<R (*)(A...)> {
  using Parameters = std::tuple<A...>;
  using Result = R;
};
template <class C, class R, class... A>
struct SignatureOf<R (C::*)(A...)> : SignatureOf<R (*)(A...)> {};
template <class C, class R, class... A>
struct SignatureOf<R (C::*)(A...) const> : SignatureOf<R (*)(A...)> {};
template <class F>
  requires requires { &F::operator(); }
struct SignatureOf<F> : SignatureOf<decltype(&F::operator())> {};

template <class F>
concept HasSignature = requires { typename SignatureOf<F>::Parameters; };

constexpr std::size_t kUnknownCount = static_cast<std::size_t>(-1);

template <class... A>
consteval std::size_t leaf_count(std::type_identity<std::tuple<A...>>) {
  if constexpr ((leaves::count<A>().has_value() && ...)) {
    return (*leaves::count<A>() + ... + 0);
  } else {
    return kUnknownCount;
  }
}

template <class F>
consteval std::size_t input_count() {
  if constexpr (HasSignature<F>) {
    return leaf_count(std::type_identity<typename SignatureOf<F>::Parameters>());
  } else {
    return kUnknownCount;
  }
}

template <class F>
consteval std::size_t output_count() {
  if constexpr (!HasSignature<F>) {
    return kUnknownCount;
  } else if constexpr (std::is_void_v<typename SignatureOf<F>::Result>) {
    return 0;
  } else {
    return leaf_count(std::type_identity<std::tuple<typename SignatureOf<F>::Result>>());
  }
}

template <std::size_t>
using PlacementsAt = Placements;

template <class Indices>
struct ExactPlacements;
template <std::size_t... I>
struct ExactPlacements<std::index_sequence<I...>> {
  ExactPlacements() = default;
  ExactPlacements(PlacementsAt<I>... each) : given(std::in_place, {std::move(each)...}) {}
  std::optional<std::vector<Placements>> given;
};
template <>
struct ExactPlacements<std::index_sequence<>> {
  std::optional<std::vector<Placements>> given;
};

struct AnyPlacements {
  AnyPlacements() = default;
  AnyPlacements(std::initializer_list<Placements> each) : given(each) {}
  AnyPlacements(std::vector<Placements> each) : given(std::move(each)) {}
  std::optional<std::vector<Placements>> given;
};

// One entry for each value, {} for one that is not a tensor. Their number is checked when compiled, if the
// signature tells it.
template <std::size_t N>
struct PlacementsOfEach : ExactPlacements<std::make_index_sequence<N>> {
  using ExactPlacements<std::make_index_sequence<N>>::ExactPlacements;
};
template <>
struct PlacementsOfEach<kUnknownCount> : AnyPlacements {
  using AnyPlacements::AnyPlacements;
};
// A single result needs no list.
template <>
struct PlacementsOfEach<1> {
  PlacementsOfEach() = default;
  PlacementsOfEach(std::initializer_list<Placement> one) : given(std::in_place, 1, Placements(one)) {}
  PlacementsOfEach(Placements one) : given(std::in_place, 1, std::move(one)) {}
  std::optional<std::vector<Placements>> given;
};

struct LocalMapSettings {
  std::optional<std::vector<Placements>> out_placements;
  std::optional<std::vector<Placements>> in_placements;
  std::optional<std::vector<Placements>> in_grad_placements;
  std::optional<DeviceMesh> device_mesh;
  bool redistribute_inputs = false;
  bool check_replicated = false;
};

// One call of a mapped function. The values come in order.
class MESHTORCH_API LocalMapCall {
 public:
  // `inputs` has one entry for each argument, undefined for what is not a tensor.
  LocalMapCall(const LocalMapSettings& settings, const std::vector<at::Tensor>& inputs);
  void input(at::Tensor& tensor);
  void other_input();
  // Whether there was a distributed argument; if not, the results stay as they are.
  bool is_distributed() const { return mesh_.has_value() && seen_dtensor_; }
  void expect_outputs(std::size_t outputs) const;
  void output(at::Tensor& tensor);
  void other_output();

 private:
  const Placements& placements(const std::optional<std::vector<Placements>>& each, std::size_t index) const;
  void note(const Placements& lies);
  Placements gradient_of(const Placements& lies) const;

  const LocalMapSettings& settings_;
  // The axes along which ranks do different things: some argument or result is not replicated there.
  std::vector<bool> differs_;
  std::optional<DeviceMesh> mesh_;
  bool seen_dtensor_ = false;
  bool is_uneven_ = false;
  std::size_t input_ = 0;
  std::size_t output_ = 0;
};

MESHTORCH_API bool is_debug_mode();

template <class T>
using KeptByLocalMap = std::conditional_t<
    std::is_base_of_v<at::Tensor, std::remove_cvref_t<T>>, at::Tensor,
    std::conditional_t<leaves::holds_tensors<std::remove_cvref_t<T>>(), std::remove_cvref_t<T>, T>>;

template <class Parameters, class... Args>
struct KeptArguments;
template <class... P, class... Args>
struct KeptArguments<std::tuple<P...>, Args...> {
  static_assert(sizeof...(P) == sizeof...(Args), "local_map: the function takes another number of arguments");
  using Type = std::tuple<KeptByLocalMap<P>...>;
};

template <class F>
class LocalMapped {
 public:
  LocalMapped(F fn, LocalMapSettings settings) : fn_(std::move(fn)), settings_(std::move(settings)) {}

  template <class... Args>
  auto operator()(Args&&... args) const {
    auto kept = keep(std::forward<Args>(args)...);
    std::vector<at::Tensor> inputs;
    for_each_value(kept, [&](auto& leaf) {
      if constexpr (leaves::Tensor<std::remove_reference_t<decltype(leaf)>>) {
        inputs.emplace_back(leaf);
      } else {
        inputs.emplace_back();
      }
    });
    LocalMapCall call(settings_, inputs);
    for_each_value(kept, [&](auto& leaf) {
      if constexpr (leaves::Tensor<std::remove_reference_t<decltype(leaf)>>) {
        call.input(const_cast<std::remove_const_t<std::remove_reference_t<decltype(leaf)>>&>(leaf));
      } else {
        call.other_input();
      }
    });
    using Result = decltype(std::apply(fn_, std::move(kept)));
    if constexpr (std::is_void_v<Result>) {
      std::apply(fn_, std::move(kept));
    } else {
      Result result = std::apply(fn_, std::move(kept));
      if (call.is_distributed()) wrap_outputs(call, result);
      return result;
    }
  }

 private:
  template <class... Args>
  static auto keep(Args&&... args) {
    if constexpr (HasSignature<F>) {
      return typename KeptArguments<typename SignatureOf<F>::Parameters, Args...>::Type(
          std::forward<Args>(args)...);
    } else {
      return std::tuple<KeptByLocalMap<Args>...>(std::forward<Args>(args)...);
    }
  }

  template <class Tuple, class Visit>
  static void for_each_value(Tuple& values, const Visit& visit) {
    std::apply([&](auto&... value) { (leaves::for_each(value, visit), ...); }, values);
  }

  template <class Result>
  static void wrap_outputs(LocalMapCall& call, Result& result) {
    std::size_t outputs = 0;
    leaves::for_each(result, [&](auto&) { ++outputs; });
    call.expect_outputs(outputs);
    leaves::for_each(result, [&](auto& leaf) {
      if constexpr (leaves::Tensor<std::remove_reference_t<decltype(leaf)>>) {
        call.output(leaf);
      } else {
        call.other_output();
      }
    });
  }

  F fn_;
  LocalMapSettings settings_;
};

}  // namespace meshtorch::detail
