// The members of a group on other hosts.
#include "liveness/remote_ranks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "liveness/flight_record.h"
#include "liveness/watched_store.h"

namespace meshtorch::internal {
namespace {

// The host of the store may be the one that is lost.
constexpr std::chrono::seconds kStoreLimit(2);

std::string words_key(int rank) { return c10::str("exit reason of rank ", rank); }

// Runs `act` beside this thread; what it gives, if it does so in time. A store that does not answer keeps its
// thread.
std::optional<std::string> in_time(const std::function<std::string()>& act) {
  auto promise = std::make_shared<std::promise<std::string>>();
  auto result = promise->get_future();
  std::thread([act, promise] {
    try {
      promise->set_value(act());
    } catch (...) {  // it is asked where something else went wrong
      promise->set_value({});
    }
  }).detach();
  if (result.wait_for(kStoreLimit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace

void write_exit_reason(const c10::intrusive_ptr<c10d::Store>& world_store, int rank,
                       const std::string& words) {
  if (!world_store) return;
  in_time([world_store, rank, words] {
    set_text(*world_store, words_key(rank), words);
    return std::string();
  });
}

RemoteRanks::RemoteRanks(c10d::Store& group_store, c10::intrusive_ptr<c10d::Store> world_store,
                         const std::vector<std::int64_t>& ranks, int rank, const std::vector<int>& here,
                         const std::string& address)
    : world_store_(std::move(world_store)) {
  const auto key = [](int r) { return c10::str("address of ", r); };
  const std::string mine = host_name() + " " + address;
  set_text(group_store, key(rank), mine);
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    if (std::find(here.begin(), here.end(), r) != here.end()) continue;
    const int world_rank = static_cast<int>(ranks[static_cast<std::size_t>(r)]);
    const AtStore at_store(world_rank, "the addresses of a group");
    const std::string text = text_at(group_store, key(r));
    const std::size_t space = text.find(' ');
    remotes_.push_back({world_rank, text.substr(0, space), text.substr(space + 1)});
  }
}

std::string RemoteRanks::names(const std::string& address) const {
  std::string text;
  for (const Remote& remote : remotes_) {
    if (!address.empty() && remote.address != address) continue;
    text += c10::str(text.empty() ? "rank " : " or rank ", remote.rank, " on ", remote.host, " (",
                     remote.address, ")");
  }
  return text;
}

std::string RemoteRanks::explain(const std::string& backend_words) const {
  const auto ask = [store = world_store_, remotes = remotes_]() -> std::string {
    for (int i = 0; i < 10; ++i) {  // words may come a moment after the connection is closed
      for (const Remote& remote : remotes) {
        if (store->check({words_key(remote.rank)}))
          return c10::str("rank ", remote.rank, " ", text_at(*store, words_key(remote.rank)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
  };
  const std::string words = world_store_ ? in_time(ask).value_or("") : "";
  if (!words.empty()) return words;
  for (const Remote& remote : remotes_) {
    if (backend_words.find("[" + remote.address + "]") != std::string::npos)
      return "the connection to " + names(remote.address) + " failed";
  }
  return "no answer from " + names("");
}

}  // namespace meshtorch::internal
