// What the tests of launchers start: joins the world from the environment, adds up, and on request lets one
// rank die.
//   launched_program [marker] [rank that dies]
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <meshtorch/collectives.h>
#include <meshtorch/process_group.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace mt = meshtorch;

int main(int argc, char** argv) {
  mt::init_process_group({.timeout = std::chrono::minutes(1)});
  const int rank = mt::get_rank();
  mt::barrier();
  if (argc > 2 && rank == std::atoi(argv[2])) _exit(7);
  const at::Tensor sum = mt::all_reduce(at::full({2}, rank + 1.0), "sum", {});
  std::printf("rank %d of %d, local %d, %s: sum %g\n", rank, mt::get_world_size(), mt::get_local_rank(),
              mt::get_backend().c_str(), sum.data_ptr<float>()[1]);
  mt::destroy_process_group();
  return 0;
}
