// The tensors inside C++ values: what hooks and local_map see of arguments and results of any type.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace meshtorch::detail::leaves {

template <class T>
concept Tensor = std::derived_from<std::remove_cv_t<T>, at::Tensor>;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

template <class T>
concept TupleLike = requires { std::tuple_size<T>::value; };

// A type that names its parts: `auto fields() { return std::tie(logits, loss); }`.
template <class T>
concept HasFields = requires(T& value) { value.fields(); };

// Converts to anything, to count the members of an aggregate.
struct Anything {
  template <class T>
  operator T() const;
};

template <class T, std::size_t... I>
consteval bool takes(std::index_sequence<I...>) {
  return requires { T{((void)I, Anything{})...}; };
}

// The number of members of an aggregate of at most eight; 0 for others.
template <class T>
consteval std::size_t member_count() {
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T> || std::is_empty_v<T>) {
    return 0;
  } else {
    std::size_t count = 0;
    [&]<std::size_t... N>(std::index_sequence<N...>) {
      ((takes<T>(std::make_index_sequence<N + 1>()) ? count = N + 1 : 0), ...);
    }(std::make_index_sequence<9>());
    return count <= 8 ? count : 0;
  }
}

// References to the members of an aggregate.
template <class T>
auto members(T& value) {
  constexpr std::size_t kCount = member_count<std::remove_cv_t<T>>();
  if constexpr (kCount == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (kCount == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (kCount == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (kCount == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (kCount == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (kCount == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  } else {
    return std::tuple<>();
  }
}

template <class T>
consteval bool holds_tensors();

template <class... T>
consteval bool any_holds_tensors(std::type_identity<std::tuple<T...>>) {
  return (holds_tensors<std::remove_cvref_t<T>>() || ...);
}

// Whether a value of this type can have tensors inside.
template <class T>
consteval bool holds_tensors() {
  if constexpr (Tensor<T>) {
    return true;
  } else if constexpr (is_optional<T> || is_vector<T>) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (HasFields<T>) {
    return any_holds_tensors(std::type_identity<decltype(std::declval<T&>().fields())>());
  } else if constexpr (TupleLike<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (holds_tensors<std::remove_cvref_t<std::tuple_element_t<I, T>>>() || ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (member_count<T>() > 0) {
    return any_holds_tensors(std::type_identity<decltype(members(std::declval<T&>()))>());
  } else {
    return false;
  }
}

// Calls `visit` on every leaf in order: a tensor, or a value without tensors in it, which is one leaf
// whatever its type.
template <class T, class Visit>
void for_each(T& value, const Visit& visit) {
  using Plain = std::remove_cv_t<T>;
  const auto each = [&](auto&... part) { (for_each(part, visit), ...); };
  if constexpr (Tensor<Plain> || !holds_tensors<Plain>()) {
    visit(value);
  } else if constexpr (is_optional<Plain>) {
    if (value) {
      for_each(*value, visit);
    } else {
      visit(value);
    }
  } else if constexpr (is_vector<Plain>) {
    for (auto& element : value) for_each(element, visit);
  } else if constexpr (HasFields<Plain>) {
    std::apply(each, value.fields());
  } else if constexpr (TupleLike<Plain>) {
    std::apply(each, value);
  } else {
    std::apply(each, members(value));
  }
}

// The number of leaves, if it is the same for all values of the type.
template <class T>
consteval std::optional<std::size_t> count() {
  using Plain = std::remove_cvref_t<T>;
  const auto sum = []<class... Part>(std::type_identity<std::tuple<Part...>>) -> std::optional<std::size_t> {
    if constexpr ((count<Part>().has_value() && ...)) {
      return (*count<Part>() + ... + 0);
    } else {
      return std::nullopt;
    }
  };
  if constexpr (Tensor<Plain> || !holds_tensors<Plain>()) {
    return 1;
  } else if constexpr (is_optional<Plain>) {
    return count<typename Plain::value_type>() == std::optional<std::size_t>(1)
               ? std::optional<std::size_t>(1)
               : std::nullopt;
  } else if constexpr (is_vector<Plain>) {
    return std::nullopt;
  } else if constexpr (HasFields<Plain>) {
    return sum(std::type_identity<decltype(std::declval<Plain&>().fields())>());
  } else if constexpr (TupleLike<Plain>) {
    return sum(std::type_identity<decltype(std::apply([](auto&... part) { return std::tie(part...); },
                                                      std::declval<Plain&>()))>());
  } else {
    return sum(std::type_identity<decltype(members(std::declval<Plain&>()))>());
  }
}

}  // namespace meshtorch::detail::leaves
