// What meshtorch costs over the same work by hand, as ratios: both are run in turns, and the least time of
// each counts, so that a noisy machine spoils neither. On thread ranks, or on processes under meshtorch-run.
#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "small_step.h"
#include "stopwatch.h"

namespace mt = meshtorch;

namespace {

using small_step::kRanks;

struct Case {
  std::string name;
  std::string over;  // what it is compared with
  std::function<void()> distributed;
  std::function<void()> by_hand;
  int times;  // in one round
};

struct Measured {
  std::string name, over;
  double distributed_us = 0, by_hand_us = 0;
};

double microseconds_of(const std::function<void()>& work, int times) {
  mt::barrier();
  const Stopwatch watch;
  for (int i = 0; i < times; ++i) work();
  return watch.milliseconds() * 1e3 / times;
}

Measured measure(const Case& c, int rounds) {
  Measured least{c.name, c.over, 1e12, 1e12};
  microseconds_of(c.distributed, c.times);
  microseconds_of(c.by_hand, c.times);
  for (int round = 0; round < rounds; ++round) {
    least.distributed_us = std::min(least.distributed_us, microseconds_of(c.distributed, c.times));
    least.by_hand_us = std::min(least.by_hand_us, microseconds_of(c.by_hand, c.times));
  }
  return least;
}

// ---- redistribution over the bare collective ----

struct Pair {
  const char* name;
  mt::Placement from, to;
  const char* bare;
};
const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all{
      {"S(0) to R", mt::Shard(0), mt::Replicate(), "all_gather_tensor, dim 0"},
      {"S(1) to R", mt::Shard(1), mt::Replicate(), "all_gather_tensor, dim 1"},
      {"S(0) to S(1)", mt::Shard(0), mt::Shard(1), "all_to_all_single of as many bytes, packed before"},
      {"S(1) to S(0)", mt::Shard(1), mt::Shard(0), "all_to_all_single of as many bytes, packed before"},
      {"P to R", mt::Partial(), mt::Replicate(), "all_reduce"},
      {"P to S(0)", mt::Partial(), mt::Shard(0), "reduce_scatter_tensor, dim 0"},
      {"P to S(1)", mt::Partial(), mt::Shard(1), "reduce_scatter_tensor, dim 1"},
  };
  return all;
}

torch::Tensor bare_collective(const Pair& pair, const torch::Tensor& local) {
  if (pair.from.is_shard() && pair.to.is_shard())
    return mt::all_to_all_single(local.view({kRanks, -1}), {}, {}, {});
  if (pair.from.is_shard()) return mt::all_gather_tensor(local, pair.from.dim(), {});
  if (pair.to.is_shard()) return mt::reduce_scatter_tensor(local, mt::ReduceOp::sum, pair.to.dim(), {});
  return mt::all_reduce(local, mt::ReduceOp::sum, {});
}

Case redistribution(const Pair& pair, int64_t bytes, const mt::DeviceMesh& mesh) {
  const int64_t side = bytes >= (1 << 22) ? 2048 : 512;
  const torch::Tensor whole = torch::ones({bytes / 4 / side, side});
  const mt::DTensor from = pair.from.is_partial() ? mt::DTensor::from_local(whole, mesh, {pair.from})
                                                  : mt::distribute_tensor(whole, mesh, {pair.from});
  const torch::Tensor local = from.to_local();
  return {std::string(pair.name) + " of " + std::to_string(bytes >> 10) + " KiB", pair.bare,
          [from, mesh, pair] { mt::wait_tensor(from.redistribute(mesh, {pair.to}).to_local()); },
          [local, pair] { mt::wait_tensor(bare_collective(pair, local)); },
          static_cast<int>(std::max<int64_t>(2, (int64_t{16} << 20) / bytes))};
}

std::vector<Measured> measure_all(const mt::DeviceMesh& mesh) {
  std::vector<Measured> results;
  const auto step = std::make_shared<small_step::Step>(mesh);
  const auto by_hand = std::make_shared<small_step::StepByHand>();
  results.push_back(measure(
      {"small tensor-parallel step", "by hand", [=] { step->run(); }, [=] { by_hand->run(); }, 20}, 25));
  const auto split = std::make_shared<small_step::ManyParameters>(&mesh);
  const auto plain = std::make_shared<small_step::ManyParameters>(nullptr);
  results.push_back(measure({"AdamW on 300 small parameters", "plain tensors",
                             [=] { split->optimizer->step(); }, [=] { plain->optimizer->step(); }, 2},
                            15));
  for (const int64_t bytes : {int64_t{256} << 10, int64_t{4} << 20, int64_t{32} << 20}) {
    for (const Pair& pair : pairs()) results.push_back(measure(redistribution(pair, bytes, mesh), 15));
  }
  return results;
}

// The part of its wait for rank 1, which is busy elsewhere, that rank 0 spends on a core.
double waiting_cpu_share(int rank) {
  mt::barrier();
  if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Stopwatch waiting;
  mt::barrier();
  return waiting.cpu_milliseconds() / waiting.milliseconds();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: ratio_benchmark RESULTS.json\n";
    return 2;
  }
  at::set_num_threads(1);
  mt::run(kRanks,
          [&](int rank) {
            const auto mesh = mt::init_device_mesh(torch::kCPU, {kRanks});
            const std::vector<Measured> results = measure_all(mesh);
            const double waiting = waiting_cpu_share(rank);
            if (rank != 0) return;
            nlohmann::ordered_json rows = nlohmann::ordered_json::array();
            for (const Measured& m : results) {
              const double ratio = m.distributed_us / m.by_hand_us;
              rows.push_back({{"name", m.name},
                              {"over", m.over},
                              {"us", m.distributed_us},
                              {"us_of_that", m.by_hand_us},
                              {"ratio", ratio}});
              std::cout << m.name << ": " << m.distributed_us << " us, " << ratio << " of " << m.over
                        << std::endl;
            }
            std::ofstream(argv[1]) << nlohmann::ordered_json{{"backend", mt::get_backend()},
                                                             {"ranks", kRanks},
                                                             {"waiting_cpu_share", waiting},
                                                             {"rows", rows}}
                                          .dump(1)
                                   << "\n";
          },
          {.intra_op_threads = 1});
}
