// What the tests of launchers start: joins the world from the environment, some times, adds up, and on
// request lets one rank die.
//   launched_program [marker] [rank that dies | "nccl"]
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <meshtorch/collectives.h>
#include <meshtorch/launch.h>
#include <meshtorch/process_group.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace mt = meshtorch;

namespace {

// Worlds that the same processes join one after the other. The first rank is slow to leave, so that the
// others are at the door of the next while it still serves the last.
bool joins_again_and_again() {
  bool is_right = true;
  for (int world = 0; world < 20; ++world) {
    mt::run(0, [&](int rank) {
      const at::Tensor sum = mt::all_reduce(at::full({2}, world + rank + 1.0), "sum", {});
      const int size = mt::get_world_size();
      is_right &= sum.data_ptr<float>()[1] == static_cast<float>(size * world + size * (size + 1) / 2);
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
  }
  return is_right;
}

// run() gives its options to processes as to threads. Of the level of agreement that shows where ranks
// differ.
bool keeps_options() {
  bool is_right = false;
  mt::run(0, [&](int) { is_right = at::get_num_threads() == 3; }, {.intra_op_threads = 3});
  const bool is_first = std::string(std::getenv("RANK")) == "0";
  try {
    mt::run(0, [](int) {}, {.agreement = is_first ? mt::Agreement::full : mt::Agreement::off});
    return false;
  } catch (const std::exception& error) {
    return is_right && std::string(error.what()).find("the level of agreement") != std::string::npos;
  }
}

// Says whether this machine has what the backend nccl needs.
int ask_for_nccl() {
  const char* rank = std::getenv("RANK");
  try {
    mt::init_process_group({.backend = "nccl"});
    mt::destroy_process_group();
    std::printf("rank %s: joined\n", rank);
  } catch (const c10::NotImplementedError& error) {
    std::printf("rank %s: %s\n", rank, error.what_without_backtrace());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[2]) == "nccl") return ask_for_nccl();
  if (!joins_again_and_again() || !keeps_options()) return 1;
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
