// The front door: 4 ranks as threads of this process, a mesh, collectives along its axes, and what they cost.
#include <ATen/ATen.h>
#include <meshtorch/meshtorch.h>

#include <iostream>
#include <sstream>

namespace mt = meshtorch;

namespace {

// "[1 2 3]"
std::string show(const at::Tensor& t) {
  std::ostringstream text;
  for (std::int64_t i = 0; i < t.numel(); ++i) text << (i > 0 ? " " : "") << t.reshape({-1})[i].item<float>();
  return "[" + text.str() + "]";
}

// A title, then one line of each rank, in order.
void tell(const std::string& title, const std::string& line) {
  for (int turn = 0; turn < mt::get_world_size(); ++turn) {
    if (turn == 0 && mt::get_rank() == 0) std::cout << "\n" << title << "\n";
    if (turn == mt::get_rank()) std::cout << "  rank " << turn << ": " << line << "\n";
    mt::barrier();
  }
}

void run(int rank) {
  // [snippet]
  // 4 ranks, 2 by 2.
  const mt::DeviceMesh mesh = mt::init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  mt::CommDebugMode comm;  // counts this rank's collectives

  // Sums over the world and along one axis.
  const at::Tensor mine = at::full({1}, rank + 1.0F);
  const at::Tensor world_sum = mt::all_reduce(mine, "sum", {});
  const at::Tensor row_sum = mt::all_reduce(mine, "sum", mesh["tp"]);

  // Uneven shards of 0 … 9, one of them empty, put together.
  const mt::Splits sizes{4, 4, 2, 0};
  const at::Tensor shard = at::arange(10.0F).split_with_sizes(sizes)[static_cast<std::size_t>(rank)];
  const at::Tensor whole = mt::all_gather_tensor(shard, 0, {}, sizes);

  // Gradients of the sum of all ranks' losses.
  const at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor loss = (rank + 1) * mt::all_reduce_autograd(x, "sum", {}).sum();
  loss.backward();
  comm.stop();
  // [snippet]

  tell("A mesh: " + mesh.to_string(),
       c10::str("is at dp=", mesh.get_local_rank("dp"), ", tp=", mesh.get_local_rank("tp")));
  tell("all_reduce: sums over the world and along axis tp",
       "gave " + show(mine) + ", has " + show(world_sum) + " and " + show(row_sum));
  tell("all_gather: uneven shards come together", "held " + show(shard) + ", has " + show(whole));
  tell("backward: the gradient of the sum of all ranks' losses", show(x.grad()));
  if (rank == 0) std::cout << "\nCommDebugMode: what rank 0 communicated\n" << comm.table();
  TORCH_CHECK(
      world_sum.item<float>() == 10 && at::equal(whole, at::arange(10.0F)) && x.grad()[0].item<float>() == 10,
      "the ranks do not agree");
}

}  // namespace

int main() {
  mt::spawn(4, run);  // or mt::init_process_group() in a program that meshtorch-run or torchrun starts
  std::cout << "\nall ranks agree\n";
}
