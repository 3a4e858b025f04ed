// Memory of a rank that loads its shards: checkpoint_memory DIR [MiB], on any number of gloo processes.
// Writes a model, then loads it as a Hugging Face file and as a checkpoint, and prints the peak of what each
// rank allocated.
#include <ATen/ATen.h>
#include <malloc.h>
#include <meshtorch/checkpoint.h>
#include <meshtorch/collectives.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/process_group.h>
#include <meshtorch/safetensors.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace {

namespace mt = meshtorch;
using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1 << 20;
constexpr int kTensors = 16;
constexpr double kAllowed = 48;  // MiB beside the shards: what is kept of the map, pieces to convert, threads

// A line of /proc/self/status, in MiB.
double status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::atof(line.c_str() + key.size() + 1) / 1024;
  }
  return 0;
}

struct Memory {
  double allocated = 0;
  double resident = 0;
};

Memory memory_now() { return {status("RssAnon"), status("VmRSS")}; }

struct Peak {
  Memory memory;
  double seconds = 0;
};

// The memory that `work` needs at its peak, beyond what the process had.
Peak watch(const std::function<void()>& work) {
  malloc_trim(0);
  const Memory before = memory_now();
  Memory peak = before;
  std::atomic<bool> is_done = false;
  std::thread watcher([&] {
    while (!is_done) {
      const Memory now = memory_now();
      peak = {std::max(peak.allocated, now.allocated), std::max(peak.resident, now.resident)};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto begin = Clock::now();
  work();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  is_done = true;
  watcher.join();
  return {{peak.allocated - before.allocated, peak.resident - before.resident}, seconds};
}

std::string name_of(int i) { return "t" + std::to_string(i); }

mt::Placement placement_of(int i) { return i % 2 == 0 ? mt::Shard(0) : mt::Shard(1); }

// False if the rank needed more than `limit` MiB.
bool report(const char* what, const Peak& peak, double shard, double limit) {
  mt::barrier();
  for (int rank = 0; rank < mt::get_world_size(); ++rank) {
    if (rank == mt::get_rank()) {
      std::printf("%-18s rank %d: shards %6.1f MiB, allocated %6.1f MiB, resident %6.1f MiB, %.2f s\n", what,
                  rank, shard, peak.memory.allocated, peak.memory.resident, peak.seconds);
      std::fflush(stdout);
    }
    mt::barrier();
  }
  return peak.memory.resident <= limit;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : "checkpoint_memory";
  const double mebibytes = argc > 2 ? std::atof(argv[2]) : 1024;
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what is freed is given back, so that one step does not hide the next
  mt::init_process_group();
  bool is_small = true;
  const bool removes_directory = mt::get_rank() == 0 && !std::filesystem::exists(directory);
  {
    const mt::DeviceMesh mesh = mt::init_device_mesh(c10::DeviceType::CPU, {mt::get_world_size()});
    const auto rows = static_cast<std::int64_t>(mebibytes * kMiB / kTensors / 4 / 2048);
    const double shard = mebibytes / mt::get_world_size();
    const auto make = [&](at::ScalarType type) {
      std::vector<std::pair<std::string, at::Tensor>> tensors;
      for (int i = 0; i < kTensors; ++i)
        tensors.emplace_back(name_of(i), mt::empty({rows, 2048}, mesh, {placement_of(i)}, type));
      return tensors;
    };
    const auto state_of = [](const auto& tensors) {
      mt::checkpoint::State state;
      for (const auto& [name, tensor] : tensors) state.add(name, tensor);
      return state;
    };
    {
      const auto tensors = make(at::kFloat);
      for (const auto& [name, tensor] : tensors) tensor.fill_(1);
      is_small &= report("export_hf", watch([&] { mt::checkpoint::export_hf(directory, tensors, "{}"); }),
                         shard, kAllowed);
      is_small &=
          report("save", watch([&] { mt::checkpoint::save(directory, state_of(tensors)); }), shard, kAllowed);
    }
    const auto load_file = [&](const auto& tensors) {
      const mt::safetensors::Files files(directory);
      for (const auto& [name, tensor] : tensors) mt::safetensors::load_into(tensor, files, name);
    };
    is_small &= report("load float32", watch([&] { load_file(make(at::kFloat)); }), shard, shard + kAllowed);
    is_small &= report("load as bfloat16", watch([&] { load_file(make(at::kBFloat16)); }), shard / 2,
                       shard / 2 + kAllowed);
    is_small &=
        report("load checkpoint", watch([&] { mt::checkpoint::load(directory, state_of(make(at::kFloat))); }),
               shard, shard + kAllowed);
  }
  mt::barrier();
  if (removes_directory) std::filesystem::remove_all(directory);
  mt::destroy_process_group();
  return is_small ? 0 : 1;
}
