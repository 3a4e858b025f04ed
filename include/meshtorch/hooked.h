// Hooked<Impl>: a module implementation whose forward, of any signature, runs hooks.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <tuple>

#include "meshtorch/detail/leaves.h"
#include "meshtorch/detail/module_scope.h"
#include "meshtorch/module_hooks.h"

namespace meshtorch {
namespace detail {

// How an argument is kept while hooks look at it: a copy if it is passed by value or holds tensors, else what
// the caller passed.
template <class A>
using KeptArgument =
    std::conditional_t<std::is_lvalue_reference_v<A> && (!std::is_const_v<std::remove_reference_t<A>> ||
                                                         !leaves::holds_tensors<std::remove_cvref_t<A>>()),
                       A, std::remove_cvref_t<A>>;

template <class Impl>
std::vector<std::string_view> declared_argument_names() {
  if constexpr (requires { Impl::argument_names(); }) {
    const auto& names = Impl::argument_names();
    return {std::begin(names), std::end(names)};
  } else {
    return {};
  }
}

template <class T>
void collect(T& value, std::string_view name, Values& values) {
  leaves::for_each(value, [&](auto& leaf) {
    if constexpr (leaves::Tensor<std::remove_reference_t<decltype(leaf)>> &&
                  !std::is_const_v<std::remove_reference_t<decltype(leaf)>>) {
      values.add(name, &leaf);
    } else {
      values.add(name, nullptr);
    }
  });
}

}  // namespace detail

// What Hooked<Impl> does, whatever the signature of forward is.
template <class Impl>
class HookedBase : public Impl, public Hookable {
 public:
  using Impl::Impl;

  std::vector<std::string_view> argument_names() const override {
    return detail::declared_argument_names<Impl>();
  }

  // As the module without hooks prints itself.
  void pretty_print(std::ostream& stream) const override {
    using OfModule = void (torch::nn::Module::*)(std::ostream&) const;
    if constexpr (std::is_same_v<decltype(&Impl::pretty_print), OfModule>) {
      stream << c10::demangle(typeid(Impl).name());
    } else {
      Impl::pretty_print(stream);
    }
  }

  // Calls forward with hooks. Arguments that have defaults may be left out; hooks do not see those.
  template <class R, class... Kept>
  R call(std::tuple<Kept...> arguments) {
    torch::nn::Module& module = *this;
    const detail::ModuleScope scope(module);
    collect_and_run_pre_hooks(module, arguments);
    Impl& self = *this;
    const auto forward = [&self](Kept&... a) -> R { return self.Impl::forward(std::forward<Kept>(a)...); };
    if constexpr (std::is_void_v<R>) {
      std::apply(forward, arguments);
      Values none;
      this->run_hooks(module, none);
    } else {
      R result = std::apply(forward, arguments);
      Values outputs;
      detail::collect(result, {}, outputs);
      this->run_hooks(module, outputs);
      return result;
    }
  }

  bool is_watched() const { return this->has_hooks() || detail::ModuleScope::is_wanted(); }

  // torch::save calls this before it opens the file. Throws ValueError if a tensor is distributed.
  void save(torch::serialize::OutputArchive& archive) const override {
    check_can_be_saved(*this);
    Impl::save(archive);
  }

  // The clone is hooked too, and so are the modules below it.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if constexpr (std::is_copy_assignable_v<Impl>) {
      const auto plain = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
      TORCH_INTERNAL_ASSERT(plain != nullptr, "clone() of ", this->name(), " gave a module of another type");
      const std::shared_ptr<HookedBase> copy = copy_of_self();
      static_cast<Impl&>(*copy) = *plain;
      copy_hooks_below(*this, *copy);
      return copy;
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "meshtorch: clone() of ", this->name(),
                                  ", which cannot be assigned to");
    }
  }

 protected:
  virtual std::shared_ptr<HookedBase> copy_of_self() const = 0;

 private:
  template <class... Kept>
  void collect_and_run_pre_hooks(torch::nn::Module& module, std::tuple<Kept...>& arguments) {
    const std::vector<std::string_view> names = argument_names();
    Values inputs;
    std::size_t index = 0;
    const auto collect_one = [&]<class K>(std::type_identity<K>, auto& value) {
      const std::string_view name = index < names.size() ? names[index] : std::string_view();
      ++index;
      if constexpr (std::is_lvalue_reference_v<K>) {
        inputs.add(name, nullptr);  // the caller's own object
      } else {
        detail::collect(value, name, inputs);
      }
    };
    std::apply([&](auto&... value) { (collect_one(std::type_identity<Kept>(), value), ...); }, arguments);
    this->run_pre_hooks(module, inputs);
  }
};

template <class Impl, class Forward = decltype(&Impl::forward)>
class Hooked;

// The same forward, with hooks.
template <class Impl, class Base, class R, class... A>
class Hooked<Impl, R (Base::*)(A...)> : public HookedBase<Impl> {
 public:
  using HookedBase<Impl>::HookedBase;
  using Arguments = std::tuple<A...>;
  using Result = R;

  R forward(A... arguments) {
    if (!this->is_watched()) return Impl::forward(std::forward<A>(arguments)...);
    return this->template call<R>(std::tuple<detail::KeptArgument<A>...>(std::forward<A>(arguments)...));
  }

 protected:
  std::shared_ptr<HookedBase<Impl>> copy_of_self() const override { return std::make_shared<Hooked>(*this); }
};

// The same for a forward that is const.
template <class Impl, class Base, class R, class... A>
class Hooked<Impl, R (Base::*)(A...) const> : public HookedBase<Impl> {
 public:
  using HookedBase<Impl>::HookedBase;
  using Arguments = std::tuple<A...>;
  using Result = R;

  R forward(A... arguments) const {
    if (!this->is_watched()) return Impl::forward(std::forward<A>(arguments)...);
    auto& self = const_cast<Hooked&>(*this);  // hooks get a module that they may change
    return self.template call<R>(std::tuple<detail::KeptArgument<A>...>(std::forward<A>(arguments)...));
  }

 protected:
  std::shared_ptr<HookedBase<Impl>> copy_of_self() const override { return std::make_shared<Hooked>(*this); }
};

// The holder of a hooked module. Unlike module->forward(…), module(…) may leave out arguments that have
// defaults.
template <class Contained>
class HookedHolder : public torch::nn::ModuleHolder<Contained> {
 public:
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;

  template <class... Args>
  typename Contained::Result operator()(Args&&... args) {
    using Parameters = typename Contained::Arguments;
    if constexpr (sizeof...(Args) == std::tuple_size_v<Parameters>) {
      return this->get()->forward(std::forward<Args>(args)...);
    } else {
      return [&]<std::size_t... I>(std::index_sequence<I...>) -> typename Contained::Result {
        return this->get()->template call<typename Contained::Result>(
            std::tuple<detail::KeptArgument<std::tuple_element_t<I, Parameters>>...>(
                std::forward<Args>(args)...));
      }(std::index_sequence_for<Args...>());
    }
  }
};

}  // namespace meshtorch

// In the place of TORCH_MODULE(Name): the holder `Name` of a hookable NameImpl.
#define MESHTORCH_MODULE_IMPL(Name, ImplType)                                     \
  class Name : public ::meshtorch::HookedHolder<::meshtorch::Hooked<ImplType>> {  \
   public:                                                                        \
    using ::meshtorch::HookedHolder<::meshtorch::Hooked<ImplType>>::HookedHolder; \
    using Impl [[maybe_unused]] = ::meshtorch::Hooked<ImplType>;                  \
  }
#define MESHTORCH_MODULE(Name) MESHTORCH_MODULE_IMPL(Name, Name##Impl)
