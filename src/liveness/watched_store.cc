// A store that is asked by a thread of its own, again and again: in between the caller looks at the ranks.
#include "liveness/watched_store.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "liveness/waits.h"
#include "runtime/error_text.h"

namespace meshtorch::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A rank that waits looks so often at those it waits for.
constexpr milliseconds kLook(200);
// The exit reason of a rank may come a moment after the store that it served is gone.
constexpr milliseconds kMomentForWords(1000);

constexpr const char* kStore = "the store, which rank 0 serves or the launcher";

thread_local const AtStore* innermost = nullptr;

[[noreturn]] void fail_at_store(const std::string& problem) {
  if (const HostPeers* peers = host_peers) peers->note_failure(problem);
  TORCH_CHECK(false, "meshtorch: ", problem, "\n  do: see what happened to the rank that is gone or late");
}

std::string meeting_words(const std::string& key) {
  return innermost != nullptr ? innermost->what() : "\"" + key + "\"";
}

std::vector<int> ranks_waited_for() {
  return innermost != nullptr ? innermost->wait().ranks : std::vector<int>();
}

void tell_of_wait(const Wait* wait) {
  if (const HostPeers* peers = host_peers) peers->tell_wait(-1, WaitPlace::store, wait);
}

std::string follow_waits_from(const std::vector<int>& late) {
  const HostPeers* peers = host_peers;
  return peers != nullptr ? peers->follow_waits(-1, late) : "";
}

WhyUnreachable why_unreachable_among(const std::vector<int>& world_ranks) {
  const HostPeers* peers = host_peers;
  return peers != nullptr ? peers->why_unreachable(world_ranks) : WhyUnreachable();
}

// What the ranks of this host are told of a wait, while it lasts.
class ToldWait {
 public:
  ToldWait() = default;
  ~ToldWait() {
    if (is_told_ && !is_given_up_) tell_of_wait(nullptr);
  }
  ToldWait(const ToldWait&) = delete;
  ToldWait& operator=(const ToldWait&) = delete;
  void tell(const Wait& wait) {
    is_told_ = true;
    tell_of_wait(&wait);
  }
  // It stays told until the rank waits again.
  void tell_of_end(Wait last) {
    is_given_up_ = true;
    last.is_given_up = true;
    tell(last);
  }

 private:
  bool is_told_ = false;
  bool is_given_up_ = false;
};

// Does one task after the other. A store that does not answer keeps this thread, not the caller's.
class StoreThread {
 public:
  static std::shared_ptr<StoreThread> start() {
    auto thread = std::make_shared<StoreThread>();
    std::thread([thread] { thread->work(); }).detach();
    return thread;
  }
  void give(std::function<void()> task) {
    {
      const std::scoped_lock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  void dismiss() {
    {
      const std::scoped_lock lock(mutex_);
      is_dismissed_ = true;
    }
    changed_.notify_one();
  }

 private:
  void work() {
    c10::setThreadName("mt_store");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_dismissed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_dismissed_ = false;
};

class WatchedStore : public c10d::Store {
 public:
  explicit WatchedStore(c10::intrusive_ptr<c10d::Store> inner)
      : Store(inner->getTimeout()), inner_(std::move(inner)), thread_(StoreThread::start()) {}
  ~WatchedStore() override { thread_->dismiss(); }
  WatchedStore(const WatchedStore&) = delete;
  WatchedStore& operator=(const WatchedStore&) = delete;

  using Bytes = std::vector<std::uint8_t>;
  using Keys = std::vector<std::string>;

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<WatchedStore>(ask([inner = inner_] { return inner->clone(); }));
  }
  void set(const std::string& key, const Bytes& value) override {
    ask([=, inner = inner_] { inner->set(key, value); });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return ask([=, inner = inner_] { return inner->compareSet(key, expected, desired); });
  }
  Bytes get(const std::string& key) override {
    wait({key});
    return ask([=, inner = inner_] { return inner->get(key); });
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return ask([=, inner = inner_] { return inner->add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return ask([=, inner = inner_] { return inner->deleteKey(key); });
  }
  bool check(const Keys& keys) override {
    return ask([=, inner = inner_] { return inner->check(keys); });
  }
  std::int64_t getNumKeys() override {
    return ask([inner = inner_] { return inner->getNumKeys(); });
  }
  void wait(const Keys& keys) override { wait(keys, getTimeout()); }
  void wait(const Keys& keys, const milliseconds& timeout) override;
  void setTimeout(const milliseconds& timeout) override {
    Store::setTimeout(timeout);
    inner_->setTimeout(timeout);
  }
  void append(const std::string& key, const Bytes& value) override {
    ask([=, inner = inner_] { inner->append(key, value); });
  }
  std::vector<Bytes> multiGet(const Keys& keys) override {
    wait(keys);
    return ask([=, inner = inner_] { return inner->multiGet(keys); });
  }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    ask([=, inner = inner_] { inner->multiSet(keys, values); });
  }
  bool hasExtendedApi() const override { return inner_->hasExtendedApi(); }
  std::vector<std::string> listKeys() override {
    return ask([inner = inner_] { return inner->listKeys(); });
  }

 private:
  // What the store says, in a thread of its own. Throws if it is gone, or does not answer in time.
  template <class Act>
  auto ask(Act act) -> decltype(act());
  [[noreturn]] static void fail_late(const std::string& key, milliseconds timeout);
  [[noreturn]] static void explain_loss(const std::string& backend_words);

  c10::intrusive_ptr<c10d::Store> inner_;
  std::shared_ptr<StoreThread> thread_;
};

template <class Act>
auto WatchedStore::ask(Act act) -> decltype(act()) {
  const milliseconds limit = getTimeout();
  using Answer = decltype(act());
  auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(act));
  std::future<Answer> answer = task->get_future();
  thread_->give([task] { (*task)(); });
  const bool has_limit = limit != kNoTimeout;
  const auto is_answered = [&](milliseconds within) {
    return answer.wait_for(within) == std::future_status::ready;
  };
  ToldWait told;
  if (!is_answered(has_limit ? std::min(limit, kLook) : kLook)) {
    const Wait for_store{{0}, c10::str("an answer of ", kStore), /*is_for_others=*/true};
    told.tell(for_store);
    if (has_limit && !is_answered(limit - kLook)) {
      told.tell_of_end(for_store);
      fail_at_store(c10::str(kStore, ", does not answer in ", limit.count(), " ms", follow_waits_from({0})));
    }
  }
  try {
    return answer.get();
  } catch (const c10::DistNetworkError&) {
    explain_loss(error_text(std::current_exception()));
  }
}

void WatchedStore::explain_loss(const std::string& backend_words) {
  WhyUnreachable known;
  for (auto left = kMomentForWords; !known.is_there() && left.count() > 0; left -= milliseconds(50)) {
    known = why_unreachable_among(innermost != nullptr ? ranks_waited_for() : std::vector<int>{0});
    if (!known.is_there()) known = why_unreachable_among({0});
    if (!known.is_there()) std::this_thread::sleep_for(milliseconds(50));
  }
  fail_at_store(c10::str(kStore, ", is gone", known.is_there() ? ": " + known.words : "",
                         "\n  backend: ", backend_words));
}

// Asks again and again, soon after the wait began and then more seldom: LibTorch's stores hold a lock while
// they wait, and one that is served elsewhere warns of each wait that takes its time.
void WatchedStore::wait(const Keys& keys, const milliseconds& timeout) {
  const auto begin = Clock::now();
  auto next_look = begin + kLook;
  WhyUnreachable why_unreachable;
  ToldWait told;
  while (!check(keys)) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    // What a rank left at the store before it went is there: asked for after the cause was seen, which
    // counts then.
    const bool is_late = timeout != kNoTimeout && waited >= timeout;
    if (innermost != nullptr && (why_unreachable.is_there() || is_late)) told.tell_of_end(innermost->wait());
    if (why_unreachable.is_there())
      fail_at_store(
          c10::str("the ranks cannot meet for ", meeting_words(keys.at(0)), ": ", why_unreachable.words));
    if (is_late) fail_late(keys.at(0), timeout);
    if (innermost != nullptr && Clock::now() >= next_look) {
      next_look = Clock::now() + kLook;
      const Wait now = innermost->wait();
      told.tell(now);
      why_unreachable = why_unreachable_among(now.ranks);
      if (why_unreachable.is_there()) continue;
    }
    std::this_thread::sleep_for(std::clamp(waited / 10, milliseconds(1), milliseconds(50)));
  }
}

void WatchedStore::fail_late(const std::string& key, milliseconds timeout) {
  const std::vector<int> late = ranks_waited_for();
  const std::string who = late.empty() ? "" : ": this rank waits for " + list_ranks(late);
  fail_at_store(c10::str("the ranks did not meet for ", meeting_words(key), " in ", timeout.count(), " ms",
                         who, follow_waits_from(late)));
}

}  // namespace

AtStore::AtStore(std::function<std::vector<int>()> late, std::string what)
    : late_(std::move(late)), what_(std::move(what)), outer_(std::exchange(innermost, this)) {}

AtStore::~AtStore() { innermost = outer_; }

const AtStore* AtStore::current() { return innermost; }

Wait AtStore::wait() const {
  const std::vector<int> late = late_();
  return {late, c10::str(list_ranks(late), " at the store, for ", what_)};
}

c10::intrusive_ptr<c10d::Store> watched(const c10::intrusive_ptr<c10d::Store>& store) {
  c10d::Store* inmost = store.get();
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(inmost))
    inmost = prefixed->getUnderlyingNonPrefixStore().get();
  const bool is_known = dynamic_cast<c10d::TCPStore*>(inmost) != nullptr ||
                        dynamic_cast<c10d::FileStore*>(inmost) != nullptr ||
                        dynamic_cast<c10d::HashStore*>(inmost) != nullptr;
  if (!is_known) return store;
  return c10::make_intrusive<WatchedStore>(store);
}

std::string text_at(c10d::Store& store, const std::string& key) {
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

// The last of them to come lets all go on.
void wait_for_all(c10d::Store& store, const std::string& what, int size) {
  if (store.add(what + " count", 1) == size) set_text(store, what, "all");
  store.wait({what});
}

void check_alike(const c10::intrusive_ptr<c10d::Store>& given, int rank, int size, const std::string& what,
                 const std::string& value) {
  if (size == 1) return;
  c10d::PrefixStore store(what, given);
  const char* kDiffers = "differs";
  const AtStore at_store(rank == 0 ? std::vector<int>() : std::vector<int>{0}, "the start of all ranks");
  if (rank == 0) {
    set_text(store, "of rank 0", value);
  } else if (const std::string first = text_at(store, "of rank 0"); first != value) {
    set_text(store, kDiffers, c10::str("rank 0 has \"", first, "\", rank ", rank, " \"", value, "\""));
  }
  const AtStore for_all(std::vector<int>(), "the start of all ranks");
  wait_for_all(store, "compared", size);
  TORCH_CHECK_VALUE(!store.check({kDiffers}), "meshtorch: the ranks have different values of ", what, ": ",
                    text_at(store, kDiffers), "\n  in: init_process_group\n  do: give the same on all ranks");
}

}  // namespace meshtorch::internal
