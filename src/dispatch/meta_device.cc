// Factories of LibTorch while an on_meta_device lives: those that all others are made of, where no device is
// named.
#include "dispatch/meta_device.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "meshtorch/meta_device.h"
#include "runtime/key.h"

namespace meshtorch {
using namespace internal;
namespace {

thread_local int meta_device_scopes = 0;

void make_on_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const int index = *op.schema().argumentIndexWithName("device");
  c10::IValue& device = (*stack)[stack->size() - arguments.size() + static_cast<std::size_t>(index)];
  if (device.isNone()) device = c10::Device(c10::DeviceType::Meta);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMetaDeviceKey), stack);
}

}  // namespace

void internal::add_meta_factories(std::vector<c10::RegistrationHandleRAII>& handles) {
  auto& dispatcher = c10::Dispatcher::singleton();
  handles.push_back(
      dispatcher.registerFallback(kMetaDeviceKey, c10::KernelFunction::makeFallthrough(), "meshtorch"));
  for (const c10::OperatorName& name :
       {c10::OperatorName("aten::empty", "memory_format"), c10::OperatorName("aten::empty_strided", "")}) {
    handles.push_back(dispatcher.registerImpl(name, kMetaDeviceKey,
                                              c10::KernelFunction::makeFromBoxedFunction<&make_on_meta>(),
                                              std::nullopt, nullptr, "meshtorch"));
  }
}

on_meta_device::on_meta_device() {
  ++meta_device_scopes;
  c10::impl::tls_set_dispatch_key_included(kMetaDeviceKey, true);
}

on_meta_device::~on_meta_device() {
  if (--meta_device_scopes == 0) c10::impl::tls_set_dispatch_key_included(kMetaDeviceKey, false);
}

}  // namespace meshtorch
