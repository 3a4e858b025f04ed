// The program of the README: a matrix product on a mesh of 2 x 2 ranks.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <iostream>

namespace mt = meshtorch;

int main() {
  mt::run(4, [](int rank) {  // 4 threads; or the 4 processes that a launcher started
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    // 5 rows over axis dp, 4 columns over axis tp: 3 x 2 elements on rank 0, 2 x 2 on rank 3.
    const mt::DTensor x =
        mt::distribute_tensor(torch::arange(20.0).view({5, 4}), mesh, {mt::Shard(0), mt::Shard(1)});
    const torch::Tensor y = torch::relu(torch::mm(x, x.t()) - 100);  // any torch:: function
    const torch::Tensor whole = mt::full_tensor(y);
    if (rank == 0) std::cout << mt::DTensor(y) << "\n\n" << whole << std::endl;
  });
}
