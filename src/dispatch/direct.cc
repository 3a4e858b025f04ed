// The operators that programs call most go past the boxed kernel where nothing has to be decided or moved:
// half of what a small call costs is the boxing of its arguments. All else about a call is the handler's.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/view_ops.h>

#include "dispatch/handler.h"
#include "dispatch/register_kernels.h"
#include "dispatch/write_back.h"
#include "operator/call_key.h"
#include "operator/kept_layout.h"
#include "operator/known_number.h"
#include "tensor/from_local.h"
#include "tensor/memory_state.h"

namespace meshtorch::internal {
namespace {

// A call while its key is being built: tensors first, then numbers, then what else is in the key.
class CachedCall {
 public:
  explicit CachedCall(const OperatorInfo& info) : origin_(info) {
    looked_up_.key.push_back(reinterpret_cast<std::int64_t>(&info));
  }

  void append(const at::Tensor& tensor, std::size_t argument) {
    const DTensorMeta* meta = meta_of(tensor);
    append_tensor(looked_up_.key, tensor, meta, argument, -1);
    origin_.add(meta, argument);
    if (meta == nullptr) {
      is_for_handler_ |= known_number(tensor) == KnownNumber::no;
      return;
    }
    is_for_handler_ |= keeps_layouts() || meta->write_back != nullptr || !meta->reduced.is_empty() ||
                       (mesh_ != nullptr && mesh_ != meta->layout->mesh) ||
                       tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (meta->assumed) assumed_ = assume_both(assumed_, meta->assumed);
    mesh_ = meta->layout->mesh;
  }
  void append(const at::Scalar& number) {
    looked_up_.key.push_back(static_cast<std::int64_t>(known_number(number)));
  }
  // What else may decide, as append_argument has it.
  void append(c10::IntArrayRef numbers) { append_integers(looked_up_.key, numbers); }
  void append(c10::OptionalIntArrayRef numbers) {
    if (numbers) return append(*numbers);
    append_none(looked_up_.key);
  }
  void append(std::int64_t number) { append_integer(looked_up_.key, number); }
  void append(bool flag) { append_flag(looked_up_.key, flag); }
  void append(std::optional<at::ScalarType> type) {
    if (type) return append(static_cast<std::int64_t>(*type));
    append_none(looked_up_.key);
  }

  // What was decided, if that is nothing more than the operator on the shards; null otherwise.
  const Decision* find() {
    if (is_for_handler_ || mesh_ == nullptr) return nullptr;
    looked_up_.decision = decisions_of(*mesh_).find(looked_up_.key);
    is_looked_up_ = true;
    const Decision* known = looked_up_.decision.get();
    const bool stays = known != nullptr && !known->results[0].is_open &&
                       std::ranges::all_of(known->moves, [](const Layout* to) { return to == nullptr; });
    return stays ? known : nullptr;
  }

  // The call by the handler, which takes over what was found.
  at::Tensor run_by_handler(const OperatorInfo& info, torch::jit::Stack stack) {
    Handler(info, stack, is_looked_up_ ? &looked_up_ : nullptr).run();
    return std::move(stack.back()).toTensor();
  }

  void mark_written(at::Tensor& self) const { origin_.mark(distributed(self, "a direct call"), 0); }
  at::Tensor marked(at::Tensor result) const {
    DTensorMeta& meta = distributed(result, "a direct call");
    origin_.mark(meta, 0);
    if (assumed_ && !meta.layout->is_replicated) meta.assumed = assumed_;
    return result;
  }

 private:
  OriginOfCall origin_;
  Handler::LookedUp looked_up_;
  bool is_looked_up_ = false;
  MeshImpl* mesh_ = nullptr;
  bool is_for_handler_ = false;
  AssumedShapePtr assumed_;  // of the tensors: see DTensorMeta
};

// ---- the arguments of a call, in the order that they have in a key: tensors, numbers, what else may decide
// ----

template <typename T>
constexpr bool is_tensor_argument = std::is_same_v<std::remove_cvref_t<T>, at::Tensor>;
template <typename T>
constexpr bool is_number_argument = std::is_same_v<std::remove_cvref_t<T>, at::Scalar>;

template <typename... Arguments>
void append_all(CachedCall& call, const Arguments&... arguments) {
  std::size_t index = 0;
  const auto append_tensor_argument = [&](const auto& argument) {
    if constexpr (is_tensor_argument<decltype(argument)>) call.append(argument, index);
    ++index;
  };
  const auto append_number = [&](const auto& argument) {
    if constexpr (is_number_argument<decltype(argument)>) call.append(argument);
  };
  const auto append_other = [&](const auto& argument) {
    using Argument = decltype(argument);
    if constexpr (!is_tensor_argument<Argument> && !is_number_argument<Argument>) call.append(argument);
  };
  (append_tensor_argument(arguments), ...);
  (append_number(arguments), ...);
  (append_other(arguments), ...);
}

template <typename Argument>
Argument& local_argument(Argument& argument) {
  return argument;
}
inline const at::Tensor& local_argument(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  return meta != nullptr ? meta->local : tensor;
}
inline at::Tensor& local_argument(at::Tensor& tensor) {
  DTensorMeta* meta = meta_of(tensor);
  return meta != nullptr ? meta->local : tensor;
}

bool changes_nothing(const LocalChanges& changes) {
  return changes.replaced.empty() && changes.masks.empty() && !changes.stand_in;
}

std::string direct_name(const char* name, const char* overload) {
  return *overload == '\0' ? std::string(name) : std::string(name) + "." + overload;
}

template <typename Op>
const OperatorInfo& direct_info() {
  static const OperatorInfo& info = operator_named(direct_name(Op::name, Op::overload_name));
  return info;
}

// ---- operators that make a tensor, and those that write to their first argument ----

// `Op` is LibTorch's description of an operator, as at::_ops::add_Tensor.
template <typename Op, typename Schema = typename Op::schema>
struct Direct;

template <typename Op, typename... Arguments>
struct Direct<Op, at::Tensor(Arguments...)> {
  static at::Tensor call(Arguments... arguments) {
    const OperatorInfo& info = direct_info<Op>();
    CachedCall call(info);
    append_all(call, arguments...);
    const Decision* known = call.find();
    if (known == nullptr || !changes_nothing(known->changes))
      return call.run_by_handler(info, {c10::IValue(arguments)...});
    const ResultPlan& plan = known->results[0];
    return call.marked(wrap(Op::call(local_argument(arguments)...), plan.layout, plan.sizes, plan.strides));
  }
};

template <typename Op, typename... Others>
struct Direct<Op, at::Tensor&(at::Tensor&, Others...)> {
  static at::Tensor& call(at::Tensor& self, Others... others) {
    const OperatorInfo& info = direct_info<Op>();
    CachedCall call(info);
    const DTensorMeta* meta = meta_of(self);
    const Decision* known = nullptr;
    if (meta != nullptr && !meta->write_back) {
      append_all(call, self, others...);
      known = call.find();
    }
    if (known == nullptr || !changes_nothing(known->changes)) {
      call.run_by_handler(info, {c10::IValue(self), c10::IValue(others)...});
      return self;
    }
    note_write(Op::call(local_argument(self), local_argument(others)...));
    call.mark_written(self);
    return self;
  }
};

// ---- views ----

template <typename Op, typename Schema = typename Op::schema>
struct DirectView;

// Those whose arguments are the same for a shard.
template <typename Op, typename... Others>
struct DirectView<Op, at::Tensor(const at::Tensor&, Others...)> {
  static at::Tensor call(const at::Tensor& self, Others... others) {
    const OperatorInfo& info = direct_info<Op>();
    CachedCall call(info);
    const DTensorMeta* meta =
        meta_of(self);  // null for the result of a collective that is not waited for yet
    const Decision* known = nullptr;
    if (meta != nullptr && !meta->write_back) {
      append_all(call, self, others...);
      known = call.find();
    }
    if (known == nullptr || !changes_nothing(known->changes))
      return call.run_by_handler(info, {c10::IValue(self), c10::IValue(others)...});
    return call.marked(wrap_view(Op::call(meta->local, others...), known->results[0], self, /*moved=*/false,
                                 info.op, {}, 0));
  }
};

using Sizes = c10::SmallVector<std::int64_t, 8>;

// The sizes that the shard is viewed in.
Sizes local_sizes(const LocalChanges& changes, c10::IntArrayRef given) {
  if (changes.replaced.empty()) return Sizes(given.begin(), given.end());
  Sizes sizes;
  for (const c10::IValue& size : changes.replaced[0].second.toListRef()) sizes.push_back(size.toInt());
  return sizes;
}

// view and its kin, which take the sizes of the result.
template <typename Op>
at::Tensor reshaped(const at::Tensor& self, c10::SymIntArrayRef symbolic) {
  const OperatorInfo& info = direct_info<Op>();
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  const DTensorMeta* meta = meta_of(self);
  CachedCall call(info);
  if (meta == nullptr || meta->write_back || !meta->local.is_contiguous())
    return call.run_by_handler(info, {self, sizes});
  append_all(call, self, sizes);
  const Decision* known = call.find();
  if (known == nullptr) return call.run_by_handler(info, {self, sizes});
  return call.marked(wrap_view(meta->local.view(local_sizes(known->changes, sizes)), known->results[0], self,
                               /*moved=*/false, info.op, {}, 0));
}

// ---- registration ----

template <template <typename...> typename Kernel, typename... Ops>
void register_direct(torch::Library& library) {
  (library.impl(direct_name(Ops::name, Ops::overload_name).c_str(),
                c10::CompileTimeFunctionPointer<typename Ops::schema, &Kernel<Ops>::call>()),
   ...);
}

}  // namespace

void add_direct_kernels(torch::Library& library) {
  namespace op = at::_ops;
  register_direct<Direct, op::add_Tensor, op::add_Scalar, op::sub_Tensor, op::mul_Tensor, op::mul_Scalar,
                  op::div_Tensor, op::div_Scalar, op::pow_Tensor_Scalar, op::neg, op::sqrt, op::rsqrt,
                  op::relu, op::silu, op::sigmoid, op::tanh, op::threshold_backward, op::silu_backward,
                  op::sigmoid_backward, op::tanh_backward, op::mm, op::bmm, op::addmm, op::sum,
                  op::sum_dim_IntList>(library);
  // What optimisers do, among others.
  register_direct<Direct, op::add__Tensor, op::add__Scalar, op::sub__Tensor, op::mul__Tensor, op::mul__Scalar,
                  op::div__Tensor, op::div__Scalar, op::addcmul_, op::addcdiv_, op::lerp__Scalar>(library);
  register_direct<DirectView, op::t, op::transpose_int, op::detach>(library);
  library.impl("view", TORCH_FN(reshaped<op::view>));
  library.impl("_unsafe_view", TORCH_FN(reshaped<op::_unsafe_view>));
}

}  // namespace meshtorch::internal
