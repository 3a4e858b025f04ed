// A program of a project that knows meshtorch only by find_package(meshtorch).
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <meshtorch/collectives.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/launch.h>

#include <atomic>

int main() {
  std::atomic<int> right = 0;
  meshtorch::spawn(2, [&](int) {
    const at::Tensor sum = meshtorch::all_reduce(at::ones({1}), "sum", {});
    const auto mesh = meshtorch::init_device_mesh(at::kCPU, {2});
    const at::Tensor split = meshtorch::distribute_tensor(at::ones({3}), mesh, {meshtorch::Shard(0)});
    if (sum.data_ptr<float>()[0] == 2 && split.sum().item<float>() == 3) ++right;
  });
  return right == 2 ? 0 : 1;
}
