// The `nccl` backend: it lies in a library of its own, which is loaded when a program asks for it.
#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>

#include "backends/backend.h"
#include "backends/nccl_plugin/plugin.h"
#include "backends/world.h"

namespace meshtorch::internal {
namespace {

// Of this library, or of the program where meshtorch is linked statically.
std::filesystem::path folder_of_library() {
  static const char here = 0;
  Dl_info info{};
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

#ifdef MESHTORCH_HAS_NCCL
constexpr bool kIsBuilt = true;
#else
constexpr bool kIsBuilt = false;
#endif
#ifdef MESHTORCH_LIBTORCH_HAS_CUDA
constexpr bool kLibTorchHasCuda = true;
#else
constexpr bool kLibTorchHasCuda = false;
#endif

struct Loaded {
  const NcclPlugin* plugin = nullptr;
  std::string problem;  // of the loader, if there is no plugin
};

Loaded load_plugin() {
  const std::string path = (folder_of_library() / "libmeshtorch_nccl.so").string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {.problem = dlerror()};
  const auto* plugin = static_cast<const NcclPlugin*>(dlsym(library, kNcclPluginSymbol));
  return {.plugin = plugin, .problem = plugin == nullptr ? path + " has no " + kNcclPluginSymbol : ""};
}

const Loaded& loaded() {
  static const Loaded once = load_plugin();
  return once;
}

}  // namespace

void check_nccl() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      kLibTorchHasCuda,
      "meshtorch: backend nccl needs a LibTorch built with CUDA, and this meshtorch was "
      "built for one without\n  do: use shm or gloo, or build meshtorch for a CUDA build "
      "of LibTorch");
  TORCH_CHECK_NOT_IMPLEMENTED(
      kIsBuilt,
      "meshtorch: backend nccl was not built: the headers of CUDA or NCCL were not "
      "found\n  do: use shm or gloo, or install nvidia-cuda-runtime and nvidia-nccl beside "
      "torch, and build meshtorch again");
  TORCH_CHECK_NOT_IMPLEMENTED(loaded().plugin != nullptr,
                              "meshtorch: backend nccl needs the CUDA libraries of LibTorch, which cannot be "
                              "loaded: ",
                              loaded().problem,
                              "\n  do: use shm or gloo, or install what torch requires (pip install torch)");
  TORCH_CHECK_NOT_IMPLEMENTED(
      loaded().plugin->device_count() > 0,
      "meshtorch: backend nccl needs a CUDA device, and this process sees none\n  do: "
      "use shm or gloo, or look at the driver and CUDA_VISIBLE_DEVICES");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size) {
  return loaded().plugin->make_backend(store, rank, size, world.timeout);
}

std::string default_backend() { return kIsBuilt && at::hasCUDA() ? "nccl" : "shm"; }

}  // namespace meshtorch::internal
