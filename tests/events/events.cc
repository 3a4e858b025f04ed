// What can go wrong between ranks in a collective, played on whatever ranks the caller is one of.
#include "events.h"

#include <meshtorch/collectives.h>
#include <meshtorch/process_group.h>
#include <signal.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace mt = meshtorch;

namespace meshtorch::testing {
namespace {

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

torch::Tensor wait(const torch::Tensor& t) { return mt::wait_tensor(t); }

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
  };
  return events;
}

void reduce_for_ever() {
  for (;;) wait(mt::all_reduce(torch::ones({1 << 20}), "sum", {}));
}

// What the guilty rank does in the place of its next collective.
const Events& absence_acts() {
  static const Events events{
      {"returns", [](bool) { mt::destroy_process_group(); }},
      {"throws", [](bool) { throw std::runtime_error("rank 1 fails"); }},
      {"exits", [](bool) { std::exit(0); }},
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

std::vector<std::string> names_of(const Events& events) {
  std::vector<std::string> names;
  for (const auto& [name, call] : events) names.push_back(name);
  return names;
}

const std::function<void(bool)>& find(const Events& events, const std::string& name) {
  for (const auto& [known, call] : events) {
    if (known == name) return call;
  }
  TORCH_CHECK(false, "no event ", name);
}

}  // namespace

const std::vector<std::string>& disagreements() {
  static const std::vector<std::string> names = names_of(disagreement_calls());
  return names;
}

const std::vector<std::string>& absences() {
  static const std::vector<std::string> names = names_of(absence_acts());
  return names;
}

std::string play_disagreement(const std::string& event, int rank) {
  return thrown_by([&] { find(disagreement_calls(), event)(rank == kGuilty); });
}

bool can_go_on() {
  const torch::Tensor sum = wait(mt::all_reduce(torch::ones({2}), "sum", {}));
  return torch::equal(sum, torch::full({2}, static_cast<float>(kRanks)));
}

std::string play_absence(const std::string& event, int rank) {
  mt::barrier();
  if (rank == kGuilty) {
    find(absence_acts(), event)(true);
    return {};
  }
  return thrown_by([&] { reduce_for_ever(); });
}

}  // namespace meshtorch::testing
