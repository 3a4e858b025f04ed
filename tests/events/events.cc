// What can go wrong between ranks in a collective, played on whatever ranks the caller is one of.
#include "events.h"

#include <meshtorch/check_replicas.h>
#include <meshtorch/collectives.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/nn.h>
#include <meshtorch/parallel_style.h>
#include <meshtorch/parallelize.h>
#include <meshtorch/process_group.h>
#include <meshtorch/random.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace mt = meshtorch;

namespace meshtorch::testing {
namespace {

torch::Tensor wait(const torch::Tensor& t) { return mt::wait_tensor(t); }

mt::DeviceMesh line() { return mt::init_device_mesh(torch::kCPU, {kRanks}); }

// Pending sums, which an operator that needs the whole reduces.
torch::Tensor pending() { return mt::DTensor::from_local(torch::ones({4}), line(), {mt::Partial()}); }

using Events = std::vector<std::pair<std::string, std::function<void(bool is_guilty)>>>;

const Events& disagreement_calls() {
  static const Events events{
      {"shape", [](bool g) { wait(mt::all_reduce(torch::ones({g ? 5 : 4}), "sum", {})); }},
      {"large shape", [](bool g) { wait(mt::all_reduce(torch::ones({g ? 200001 : 200000}), "sum", {})); }},
      {"dims", [](bool g) { wait(mt::all_reduce(torch::ones({g ? 2 : 3, g ? 3 : 2}), "sum", {})); }},
      {"dtype",
       [](bool g) { wait(mt::all_reduce(torch::ones({4}, g ? torch::kInt : torch::kFloat), "sum", {})); }},
      {"collective",
       [](bool g) {
         wait(g ? mt::all_gather_tensor(torch::ones({4}), 0, {})
                : mt::all_reduce(torch::ones({4}), "sum", {}));
       }},
      {"reduction", [](bool g) { wait(mt::all_reduce(torch::ones({4}), g ? "max" : "sum", {})); }},
      {"average", [](bool g) { wait(mt::all_reduce(torch::ones({4}), g ? "avg" : "sum", {})); }},
      {"reduction of bool",
       [](bool g) { wait(mt::all_reduce(torch::ones({4}, torch::kBool), g ? "max" : "sum", {})); }},
      {"root", [](bool g) { wait(mt::broadcast(torch::ones({4}), g ? 1 : 0, {})); }},
      {"broadcast shape", [](bool g) { wait(mt::broadcast(torch::ones({g ? 3 : 4}), 0, {})); }},
      {"dim", [](bool g) { wait(mt::all_gather_tensor(torch::ones({2, 2}), g ? 1 : 0, {})); }},
      {"scattered dim",
       [](bool g) { wait(mt::reduce_scatter_tensor(torch::ones({3, 3}), "sum", g ? 1 : 0, {})); }},
      {"gathered sizes",
       [](bool g) { wait(mt::all_gather_tensor(torch::ones({2}), 0, {}, mt::Splits{2, 2, g ? 1 : 2})); }},
      {"splits",
       [](bool g) { wait(mt::all_to_all_single(torch::ones({3}), {1, g ? 0 : 1, 1}, {1, 1, 1}, {})); }},
      {"rows",
       [](bool g) { wait(mt::all_to_all_single(torch::ones({3, g ? 2 : 4}), {1, 1, 1}, {1, 1, 1}, {})); }},
      {"order",
       [](bool g) {
         if (g) wait(mt::all_gather_tensor(torch::ones({4}), 0, {}));
         wait(mt::all_reduce(torch::ones({4}), "sum", {}));
         if (!g) wait(mt::all_gather_tensor(torch::ones({4}), 0, {}));
       }},
      {"barrier",
       [](bool g) { g ? mt::barrier() : (void)wait(mt::all_reduce(torch::ones({4}), "sum", {})); }},
      {"coalesced",
       [](bool g) {
         const torch::Tensor x = torch::ones({4});
         for (const auto& t :
              mt::all_reduce_coalesced(g ? mt::Tensors{x, x, x} : mt::Tensors{x, x}, "sum", {}))
           wait(t);
       }},
      {"scattered root",
       [](bool g) {
         mt::distribute_tensor(torch::ones({3, 3}), line(), {mt::Shard(0)}, {.src_data_rank = g ? 1 : 0});
       }},
      {"placements",
       [](bool g) { mt::distribute_tensor(torch::ones({3, 3}), line(), {mt::Shard(g ? 1 : 0)}); }},
      {"placements that send as much",
       [](bool g) {
         const auto placement = g ? mt::Placement(mt::Replicate()) : mt::Placement(mt::Partial());
         mt::distribute_tensor(torch::ones({3, 3}), line(), {placement});
       }},
      {"local placements",
       [](bool g) {
         mt::DTensor::from_local(torch::ones({3, 3}), line(), {mt::Shard(g ? 1 : 0)}).full_tensor();
       }},
      {"redistribution",
       [](bool g) {
         const auto rows = mt::distribute_tensor(torch::ones({3, 3}), line(), {mt::Shard(0)});
         const auto placement = g ? mt::Placement(mt::Replicate()) : mt::Placement(mt::Shard(1));
         wait(rows.redistribute({placement}).to_local());
       }},
      {"mesh",
       [](bool g) {
         mt::init_device_mesh(
             torch::kCPU, g ? std::vector<std::int64_t>{1, kRanks} : std::vector<std::int64_t>{kRanks, 1});
       }},
      {"plan",
       [](bool g) {
         mt::nn::Linear linear(3, 3);
         using Style = mt::ParallelizePlan;
         mt::parallelize_module(*linear, line(),
                                g ? Style{{"", mt::RowwiseParallel()}} : Style{{"", mt::ColwiseParallel()}});
       }},
      {"operators in another order",
       [](bool g) {
         const torch::Tensor first = pending();
         const torch::Tensor second = pending();
         if (g) {
           torch::sigmoid(second);
           torch::exp(first);
         } else {
           torch::exp(first);
           torch::sigmoid(second);
         }
       }},
      {"one operator more",
       [](bool g) {
         if (g) torch::tanh(pending());
         torch::exp(pending());
       }},
      {"a number read by one rank",
       [](bool g) {
         const torch::Tensor loss = pending().sum();
         if (g) loss.item<float>();
         wait(mt::all_reduce(torch::ones({}), "sum", {}));
       }},
      {"sums in another order",
       [](bool g) {
         const auto first = [] { wait(mt::all_reduce(torch::full({4}, 1.0), "sum", {})); };
         const auto second = [] { wait(mt::all_reduce(torch::full({4}, 2.0), "sum", {})); };
         if (g) {
           second();
           first();
         } else {
           first();
           second();
         }
       }},
      {"one operator's operands in another order",
       [](bool g) {
         const torch::Tensor first = pending();
         const torch::Tensor second = pending();
         torch::exp(g ? second : first);
         torch::exp(g ? first : second);
       }},
      {"one operator more in the middle",
       [](bool g) {
         const torch::Tensor x = pending();
         const torch::Tensor y = x * 2;
         torch::exp(x);
         if (g) torch::exp(y * 2);
         torch::exp(y);
         torch::exp(y * 3);
       }},
      {"one operator more in a branch",
       [](bool g) {
         const torch::Tensor x = pending();
         torch::exp(g ? torch::exp(x) * x : x);
         torch::exp(x * 2);
       }},
      {"local placements of which one sends nothing",
       [](bool g) {
         const auto placement = g ? mt::Placement(mt::Shard(0)) : mt::Placement(mt::Replicate());
         mt::DTensor::from_local(torch::ones({3, 3}), line(), {placement}).full_tensor();
         wait(mt::all_gather_tensor(torch::ones({3, 3}), 0, {}));
       }},
      {"an update of a parameter",
       [](bool g) {
         const mt::DTensor weight = mt::distribute_tensor(torch::ones({5, 3}), line(), {mt::Replicate()});
         const mt::DTensor bias = mt::distribute_tensor(torch::ones({3}), line(), {mt::Replicate()});
         for (int step = 0; step < 100; ++step) {
           weight.to_local().add_(g && step == 20 ? 2 : 1);
           bias.to_local().add_(1);
           torch::exp(weight);
           torch::exp(bias);
           wait(mt::all_reduce(torch::ones({4}), "sum", {}));
         }
       }},
      {"data",
       [](bool g) {
         const auto copies =
             mt::DTensor::from_local(torch::full({4}, g ? 2.0 : 1.0), line(), {mt::Replicate()});
         const mt::CheckReplicas check;
         copies.redistribute({mt::Shard(0)});
       }},
  };
  return events;
}

// Calls that send nothing: ranks compare them with their next collective, at the level `full` at once.
const Events& silent_calls() {
  static const Events events{
      {"seed", [](bool g) { mt::manual_seed(g ? 2 : 1); }},
      {"local placements",
       [](bool g) { mt::DTensor::from_local(torch::ones({3, 3}), line(), {mt::Shard(g ? 1 : 0)}); }},
      {"local types",
       [](bool g) {
         const auto type = g ? torch::kDouble : torch::kFloat;
         mt::DTensor::from_local(torch::ones({3, 3}, type), line(), {mt::Shard(0)});
       }},
      {"placements of own data",
       [](bool g) {
         mt::distribute_tensor(torch::ones({3, 3}), line(), {mt::Shard(g ? 1 : 0)},
                               {.src_data_rank = std::nullopt});
       }},
      {"redistribution of copies",
       [](bool g) {
         const auto copies = mt::DTensor::from_local(torch::ones({3, 3}), line(), {mt::Replicate()});
         copies.redistribute({mt::Shard(g ? 1 : 0)});
       }},
      {"own data",
       [](bool g) {
         torch::exp(mt::distribute_tensor(torch::full({3, 3}, g ? 2.0 : 1.0), line(), {mt::Replicate()},
                                          {.src_data_rank = std::nullopt}));
       }},
      {"local data",
       [](bool g) {
         torch::exp(mt::DTensor::from_local(torch::full({3, 3}, g ? 2.0 : 1.0), line(), {mt::Replicate()}));
       }},
      {"one seed more",
       [](bool g) {
         mt::manual_seed(1);
         if (g) mt::manual_seed(1);
       }},
  };
  return events;
}

struct SummingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return wait(mt::all_reduce(x, "sum", {})); }
};
MESHTORCH_MODULE(Summing);

struct TwoSumsImpl : torch::nn::Module {
  TwoSumsImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x, bool begins_with_second) {
    return begins_with_second ? first(second(x)) : second(first(x));
  }
  Summing first;
  Summing second;
};
MESHTORCH_MODULE(TwoSums);

// The guilty rank goes on after its error.
const Events& calls_on_own_data() {
  static const Events events{{"ids of one rank", [](bool g) {
                                const auto table =
                                    mt::DTensor::from_local(torch::ones({4, 2}), line(), {mt::Replicate()});
                                const auto ids = mt::DTensor::from_local(
                                    torch::full({2}, g ? 9 : 0, torch::kLong), line(), {mt::Shard(0)});
                                const std::string told = thrown_by([&] { torch::embedding(table, ids); });
                                TORCH_CHECK(told.empty() != g, "the wrong rank failed: ", told);
                              }}};
  return events;
}

// Equal calls, which only the modules around them tell apart: the level `full` compares those.
const Events& calls_in_modules() {
  static const Events events{{"modules in another order", [](bool g) { TwoSums()(torch::ones({4}), g); }}};
  return events;
}

// Functions that stay apart when they are compiled.
[[gnu::noinline]] float sum_of_ones() {
  return wait(mt::all_reduce(torch::ones({4}), "sum", {}))[0].item<float>();
}
[[gnu::noinline]] float train() { return 1 + sum_of_ones(); }
[[gnu::noinline]] float evaluate() { return 2 * sum_of_ones(); }
[[gnu::noinline]] torch::Tensor train_by_operator() { return 1 + torch::exp(pending()); }
[[gnu::noinline]] torch::Tensor evaluate_by_operator() { return 2 * torch::exp(pending()); }
[[gnu::noinline]] std::size_t train_by_seed() { return mt::manual_seed(1), 1; }
[[gnu::noinline]] std::size_t evaluate_by_seed() { return mt::manual_seed(1), 2; }
// Equal calls, which only their places in the program tell apart.
const Events& calls_from_places() {
  static const Events events{
      {"a helper", [](bool g) { g ? evaluate() : train(); }},
      {"an operator", [](bool g) { g ? evaluate_by_operator() : train_by_operator(); }},
      {"a seed", [](bool g) { g ? evaluate_by_seed() : train_by_seed(); }},
  };
  return events;
}

void reduce_for_ever() {
  for (;;) wait(mt::all_reduce(torch::ones({1 << 20}), "sum", {}));
}

// Fails by the data of one rank: its part of the ids is beyond the table.
void look_up_too_far() {
  const mt::DeviceMesh mesh(torch::kCPU, std::vector<std::int64_t>{kGuilty});
  const auto table = mt::distribute_tensor(torch::ones({4, 2}), mesh, {mt::Replicate()});
  torch::embedding(table, mt::distribute_tensor(torch::full({2}, 9, torch::kLong), mesh, {mt::Shard(0)}));
}

// Leaves the world when its scope ends, however that is.
struct LeavesTheWorld {
  LeavesTheWorld() = default;
  ~LeavesTheWorld() { mt::destroy_process_group(); }
  LeavesTheWorld(const LeavesTheWorld&) = delete;
  LeavesTheWorld& operator=(const LeavesTheWorld&) = delete;
};

// What the guilty rank does in the place of its next collective.
const Events& absence_acts() {
  static const Events events{
      {"returns", [](bool) { mt::destroy_process_group(); }},
      {"throws", [](bool) { throw std::runtime_error("the dog ate it"); }},
      {"throws and leaves",
       [](bool) {
         thrown_by([] {
           const LeavesTheWorld scope;
           throw std::runtime_error("the dog ate it");
         });
       }},
      {"fails in an operator", [](bool) { look_up_too_far(); }},
      {"fails in an operator and exits",
       [](bool) {
         thrown_by(look_up_too_far);
         std::exit(3);
       }},
      {"fails in an operator and stalls",
       [](bool) {
         thrown_by(look_up_too_far);
         raise(SIGSTOP);
       }},
      {"exits", [](bool) { std::exit(0); }},
      {"exits with an error", [](bool) { std::exit(3); }},
      {"aborts", [](bool) { std::abort(); }},
      {"is killed", [](bool) { raise(SIGKILL); }},
      {"stalls", [](bool) { raise(SIGSTOP); }},
      {"is killed inside",
       [](bool) {
         std::thread([] {
           std::this_thread::sleep_for(std::chrono::milliseconds(200));
           raise(SIGKILL);
         }).detach();
         reduce_for_ever();
       }},
      {"stalls inside",
       [](bool) {
         std::thread([] {
           std::this_thread::sleep_for(std::chrono::milliseconds(200));
           raise(SIGSTOP);
         }).detach();
         reduce_for_ever();
       }},
  };
  return events;
}

// What all ranks do after they have met: it ends in an error on those that are not guilty.
using Courses = std::vector<std::pair<std::string, std::function<void(int rank)>>>;

// A group that is not there yet: ranks meet for it at the store.
void make_a_group() { wait(mt::all_reduce(torch::ones({4}), "sum", mt::Group({2, 1, 0}))); }

const Courses& other_courses() {
  static const Courses courses{
      {"is killed before a group is made",
       [](int rank) {
         if (rank == kGuilty) raise(SIGKILL);
         make_a_group();
       }},
      {"throws before a group is made",
       [](int rank) {
         if (rank == kGuilty) throw std::runtime_error("the dog ate it");
         make_a_group();
       }},
      {"stalls before a group is made",
       [](int rank) {
         if (rank == kGuilty) raise(SIGSTOP);
         make_a_group();
       }},
      // Rank 0 waits for rank 2, which waits for the guilty one in a group in which rank 0 is not.
      {kStallsBehindAnother,
       [](int rank) {
         const mt::Group near({0, 2});
         const mt::Group far({1, 2});
         mt::barrier();
         if (rank == kGuilty) raise(SIGSTOP);
         if (rank == 2) wait(mt::all_reduce(torch::ones({4}), "sum", far));
         wait(mt::all_reduce(torch::ones({4}), "sum", near));
       }},
  };
  return courses;
}

template <class List>
std::vector<std::string> names_of(const List& events) {
  std::vector<std::string> names;
  for (const auto& [name, call] : events) names.push_back(name);
  return names;
}

template <class List>
const auto& find(const List& events, const std::string& name) {
  for (const auto& [known, call] : events) {
    if (known == name) return call;
  }
  TORCH_CHECK(false, "no event ", name);
}

}  // namespace

std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

const std::vector<std::string>& disagreements() {
  static const std::vector<std::string> names = names_of(disagreement_calls());
  return names;
}

const std::vector<std::string>& absences() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = names_of(absence_acts());
    for (const std::string& name : names_of(other_courses())) all.push_back(name);
    return all;
  }();
  return names;
}

const std::vector<std::string>& silent_disagreements() {
  static const std::vector<std::string> names = names_of(silent_calls());
  return names;
}

std::string words_of(const std::string& absence) {
  if (absence == "throws") return "rank 1 failed after barrier #1 (process";
  if (absence == "throws and leaves") return "rank 1 left after barrier #1 (process";
  if (absence == "fails in an operator") return "ndex";
  if (absence == "fails in an operator and exits") return "before that aten::embedding";
  if (absence == "fails in an operator and stalls") return "then failed: aten::embedding";
  if (absence == "exits") return "rank 1 has exited with code 0 after barrier #1";
  if (absence == "exits with an error") return "rank 1 has exited with code 3 after barrier #1";
  if (absence == "is killed before a group is made") return "ranks 2, 1, 0: rank 1 has died";
  if (absence == "throws before a group is made") return "rank 1 failed after barrier #1 (process";
  if (absence == "stalls before a group is made") return "rank 1 has not come: its process";
  if (absence == kStallsBehindAnother) return "rank 1 has not come: its process";
  return "rank 1";
}

std::string play_disagreement(const std::string& event, int rank) {
  return thrown_by([&] { find(disagreement_calls(), event)(rank == kGuilty); });
}

std::string play_silent_disagreement(const std::string& event, int rank) {
  return thrown_by([&] {
    find(silent_calls(), event)(rank == kGuilty);
    wait(mt::all_reduce(torch::ones({4}), "sum", {}));
  });
}

const std::vector<std::string>& disagreements_of_data() {
  static const std::vector<std::string> names = names_of(calls_on_own_data());
  return names;
}

std::string play_disagreement_of_data(const std::string& event, int rank) {
  return thrown_by([&] {
    find(calls_on_own_data(), event)(rank == kGuilty);
    wait(mt::all_reduce(torch::ones({4}), "sum", {}));
  });
}

const std::vector<std::string>& disagreements_of_modules() {
  static const std::vector<std::string> names = names_of(calls_in_modules());
  return names;
}

std::string play_disagreement_of_modules(const std::string& event, int rank) {
  return thrown_by([&] { find(calls_in_modules(), event)(rank == kGuilty); });
}

const std::vector<std::string>& disagreements_of_places() {
  static const std::vector<std::string> names = names_of(calls_from_places());
  return names;
}

std::string play_disagreement_of_places(const std::string& event, int rank) {
  return thrown_by([&] { find(calls_from_places(), event)(rank == kGuilty); });
}

bool can_go_on() {
  const torch::Tensor sum = wait(mt::all_reduce(torch::ones({2}), "sum", {}));
  return torch::equal(sum, torch::full({2}, static_cast<float>(kRanks)));
}

std::string play_stall_of_the_store(const std::string& process_file, int rank, bool is_behind_another) {
  if (rank == 0) std::ofstream(process_file) << getpid();
  const auto meet = [](std::vector<std::int64_t> ranks) {
    wait(mt::all_reduce(torch::ones({4}), "sum", mt::Group(std::move(ranks))));
  };
  if (is_behind_another && rank != 0) meet({2, 1});
  mt::barrier();
  if (rank == 0) raise(SIGSTOP);
  int process = 0;
  std::ifstream(process_file) >> process;
  const std::string facts = "/proc/" + std::to_string(process) + "/stat";
  for (std::string text; text.find(") T ") == std::string::npos;) std::getline(std::ifstream(facts), text);
  return thrown_by([&] { is_behind_another&& rank == 1 ? meet({1, 0}) : meet({2, 1}); });
}

std::string play_absence(const std::string& event, int rank) {
  mt::barrier();
  for (const auto& [name, course] : other_courses()) {
    if (name != event) continue;
    if (rank != kGuilty) return thrown_by([&, &act = course] { act(rank); });
    course(rank);
  }
  if (rank == kGuilty) {
    find(absence_acts(), event)(true);
    return {};
  }
  return thrown_by([&] { reduce_for_ever(); });
}

}  // namespace meshtorch::testing
