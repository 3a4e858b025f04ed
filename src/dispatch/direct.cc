// The operators that programs call most go past the boxed kernel where nothing has to be decided or moved:
// half of what a small call costs is the boxing of its arguments. All else about a call is the handler's.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_ops.h>

#include "dispatch/attach.h"
#include "dispatch/handler.h"
#include "dispatch/write_back.h"
#include "operator/call_key.h"
#include "operator/kept_layout.h"
#include "operator/known_number.h"
#include "tensor/from_local.h"

namespace meshtorch::internal {
namespace {

// A call while its key is being built: tensors first, then numbers, then what else is in the key.
class KnownCall {
 public:
  explicit KnownCall(const OperatorInfo& info) {
    looked_up_.key.push_back(reinterpret_cast<std::int64_t>(&info));
  }

  void append(const at::Tensor& tensor, std::size_t argument) {
    const DTensorMeta* meta = meta_of(tensor);
    append_tensor(looked_up_.key, tensor, meta, argument, -1);
    if (meta == nullptr) {
      is_for_handler_ |= known_number(tensor) == KnownNumber::no;
      return;
    }
    is_for_handler_ |= keeps_layouts() || (mesh_ != nullptr && mesh_ != meta->layout->mesh);
    if (meta->assumed) assumed_ = assume_both(assumed_, meta->assumed);
    mesh_ = meta->layout->mesh;
  }
  void append(const at::Scalar& number) {
    looked_up_.key.push_back(static_cast<std::int64_t>(known_number(number)));
  }
  void append(c10::IntArrayRef numbers) { append_integers(looked_up_.key, numbers); }

  // What was decided, if that is nothing more than the operator on the shards; null otherwise.
  const Decision* find() {
    if (is_for_handler_) return nullptr;
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

  at::Tensor marked(at::Tensor result) const {
    DTensorMeta& meta = distributed(result, "a direct call");
    if (assumed_ && !meta.layout->is_replicated) meta.assumed = assumed_;
    return result;
  }

 private:
  Handler::LookedUp looked_up_;
  bool is_looked_up_ = false;
  MeshImpl* mesh_ = nullptr;
  bool is_for_handler_ = false;
  AssumedShapePtr assumed_;  // of the tensors: see DTensorMeta
};

// ---- operators of tensors and values ----

void append_tensor_argument(KnownCall& call, const at::Tensor& tensor, std::size_t index) {
  call.append(tensor, index);
}
void append_tensor_argument(KnownCall&, const at::Scalar&, std::size_t) {}
void append_value_argument(KnownCall&, const at::Tensor&) {}
void append_value_argument(KnownCall& call, const at::Scalar& number) { call.append(number); }

const at::Tensor& local_argument(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  return meta != nullptr ? meta->local : tensor;
}
const at::Scalar& local_argument(const at::Scalar& number) { return number; }

bool changes_nothing(const LocalChanges& changes) {
  return changes.replaced.empty() && changes.masks.empty() && !changes.stand_in;
}

std::string direct_name(const char* name, const char* overload) {
  return *overload == '\0' ? std::string(name) : std::string(name) + "." + overload;
}

// `Op` is LibTorch's description of an operator, as at::_ops::add_Tensor.
template <typename Op, typename Schema = typename Op::schema>
struct Direct;

template <typename Op, typename... Arguments>
struct Direct<Op, at::Tensor(Arguments...)> {
  static at::Tensor call(Arguments... arguments) {
    static const OperatorInfo& info = operator_named(direct_name(Op::name, Op::overload_name));
    KnownCall call(info);
    std::size_t index = 0;
    (append_tensor_argument(call, arguments, index++), ...);
    (append_value_argument(call, arguments), ...);
    const Decision* known = call.find();
    if (known == nullptr || !changes_nothing(known->changes))
      return call.run_by_handler(info, {c10::IValue(arguments)...});
    const ResultPlan& plan = known->results[0];
    return call.marked(wrap(Op::call(local_argument(arguments)...), plan.layout, plan.sizes, plan.strides));
  }
};

template <typename... Ops>
void register_direct(torch::Library& library) {
  (library.impl(direct_name(Ops::name, Ops::overload_name).c_str(),
                c10::CompileTimeFunctionPointer<typename Ops::schema, &Direct<Ops>::call>()),
   ...);
}

// ---- view ----

using Sizes = c10::SmallVector<std::int64_t, 8>;

// The sizes that the shard is viewed in.
Sizes local_sizes(const LocalChanges& changes, c10::IntArrayRef given) {
  if (changes.replaced.empty()) return Sizes(given.begin(), given.end());
  Sizes sizes;
  for (const c10::IValue& size : changes.replaced[0].second.toListRef()) sizes.push_back(size.toInt());
  return sizes;
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef symbolic) {
  static const OperatorInfo& info = operator_named("view");
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  const DTensorMeta* meta = meta_of(self);  // null for the result of a collective that is not waited for yet
  KnownCall call(info);
  if (meta == nullptr || meta->write_back || !meta->local.is_contiguous())
    return call.run_by_handler(info, {self, sizes});
  call.append(self, 0);
  call.append(sizes);
  const Decision* known = call.find();
  if (known == nullptr) return call.run_by_handler(info, {self, sizes});
  return call.marked(wrap_view(meta->local.view(local_sizes(known->changes, sizes)), known->results[0], self,
                               /*moved=*/false, info.op, {}, 0));
}

}  // namespace

void add_direct_kernels(torch::Library& library) {
  namespace op = at::_ops;
  register_direct<op::add_Tensor, op::sub_Tensor, op::mul_Tensor, op::div_Tensor, op::pow_Tensor_Scalar,
                  op::neg, op::rsqrt, op::relu, op::silu, op::sigmoid, op::tanh, op::mm, op::bmm, op::addmm>(
      library);
  library.impl("view", TORCH_FN(view));
}

}  // namespace meshtorch::internal
