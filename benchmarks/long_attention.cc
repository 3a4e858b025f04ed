// Causal attention on a sequence that the ranks share: long_attention [TOKENS [METHOD]], on any number of
// processes. For each order of the sequence it prints, of each rank, the peak of what forward and backward
// allocate beside the inputs, the processor time, and the products of a query and a key.
#include <ATen/ATen.h>
#include <meshtorch/collectives.h>
#include <meshtorch/context_parallel.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/memory.h>
#include <meshtorch/process_group.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace {

namespace mt = meshtorch;

constexpr std::int64_t kHeads = 8, kHeadSize = 64;
constexpr double kMiB = 1 << 20;

double processor_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Measured {
  double peak_mib = 0;
  double seconds = 0;
  double products = 0;
};

// The pairs of a query of this rank and a key that it sees.
double visible_pairs(std::int64_t tokens, std::int64_t rank, std::int64_t n, bool is_balanced) {
  const auto piece = [&](std::int64_t i, std::int64_t pieces) {
    const auto size = static_cast<double>(tokens) / static_cast<double>(pieces);
    const double begin = static_cast<double>(i) * size;
    return size * begin + size * (size + 1) / 2;
  };
  return is_balanced ? piece(rank, 2 * n) + piece(2 * n - 1 - rank, 2 * n) : piece(rank, n);
}

Measured attend(std::int64_t tokens, bool is_balanced, const mt::DeviceMesh& mesh) {
  const std::vector<std::int64_t> local{1, kHeads, tokens / mesh.size(), kHeadSize};
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor shard = at::randn(local);
    inputs.push_back(mt::DTensor::from_local(shard, mesh, {mt::Shard(2)}).requires_grad_());
  }
  const mt::DTensor gradient = mt::DTensor::from_local(at::ones(local), mesh, {mt::Shard(2)});
  // The data is drawn: which positions the rows have is all that the order changes.
  const mt::context_parallel order(mesh, {}, {}, {.load_balance = is_balanced});
  mt::barrier();
  mt::PeakMemory peak;
  const double begin = processor_seconds();
  at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0.0, /*is_causal=*/true)
      .backward(gradient);
  const double seconds = processor_seconds() - begin;
  return {static_cast<double>(peak.bytes()) / kMiB, seconds,
          visible_pairs(tokens, mesh.get_local_rank(), mesh.size(), is_balanced)};
}

void report(const Measured& mine, const char* order, const mt::DeviceMesh& mesh) {
  const at::Tensor all = mt::wait_tensor(mt::all_gather_tensor(
      at::tensor({mine.peak_mib, mine.seconds, mine.products}, at::kDouble).unsqueeze(0), 0,
      mesh.get_group()));
  if (mt::get_rank() != 0) return;
  for (std::int64_t r = 0; r < all.size(0); ++r) {
    std::printf("%-10s rank %d: peak %7.1f MiB, %6.2f s of processor time, %6.1f million pairs\n", order,
                static_cast<int>(r), all[r][0].item<double>(), all[r][1].item<double>(),
                all[r][2].item<double>() / 1e6);
  }
  const auto apart = [&](std::int64_t column) {
    const at::Tensor of_ranks = all.select(1, column);
    return 100 * (of_ranks.max() / of_ranks.min() - 1).item<double>();
  };
  std::printf("%-10s ranks are %.1f %% apart in time, %.1f %% in pairs\n", order, apart(1), apart(2));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 16384;
  mt::init_process_group();
  {
    const std::int64_t n = mt::get_world_size();
    if (tokens % (2 * n) != 0) {
      std::fprintf(stderr, "long_attention: %lld tokens are no multiple of twice the %lld ranks\n",
                   static_cast<long long>(tokens), static_cast<long long>(n));
      return 1;
    }
    mt::set_rotate_method(argc > 2 ? argv[2] : "ring");
    const mt::DeviceMesh mesh = mt::init_device_mesh(c10::DeviceType::CPU, {n}, {"cp"});
    if (mt::get_rank() == 0)
      std::printf("%lld tokens on %lld ranks, %s; queries, keys and values of a rank: %.1f MiB\n",
                  static_cast<long long>(tokens), static_cast<long long>(n),
                  std::string(mt::to_string(mt::get_rotate_method())).c_str(),
                  3.0 * static_cast<double>(kHeads * kHeadSize * tokens / n) * 4 / kMiB);
    attend(2 * n * 8, true, mesh);  // groups and caches are made
    report(attend(tokens, true, mesh), "balanced", mesh);
    report(attend(tokens, false, mesh), "in order", mesh);
  }
  mt::destroy_process_group();
  return 0;
}
