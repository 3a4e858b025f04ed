// Work that starts when the ranks have agreed on it: mostly at once, in its caller.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/group_call.h"
#include "comm/host_meeting.h"

namespace meshtorch::internal {

class AgreedWork : public c10d::Work {
 public:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  // Says what is known of the ranks when the work fails with these words.
  using Explain = std::function<std::string(const std::string& backend_words)>;
  // Called by a thread that needs the work before it has started.
  using Help = std::function<void(const AgreedWork& work)>;
  AgreedWork(int rank, Start start, Explain explain, Help help)
      : Work(rank), start_(std::move(start)), explain_(std::move(explain)), help_(std::move(help)) {}

  // Starts the work, or says why it will not be.
  void start();
  void refuse(std::exception_ptr error);

  bool is_settled() const;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return started()->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return started()->getFuture(); }

 private:
  // Blocks until the ranks have met; throws if they did not agree.
  const c10::intrusive_ptr<c10d::Work>& started();
  void settle(c10::intrusive_ptr<c10d::Work> work, std::exception_ptr error);

  Start start_;
  Explain explain_;
  Help help_;
  mutable std::mutex own_mutex_;
  std::condition_variable settled_;
  bool is_settled_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  std::exception_ptr error_;
};

// Meets the other members for each call of a group, in the order of the calls: in the caller while it can
// afford to watch for them, in a thread of its own where one is late.
class Courier {
 public:
  explicit Courier(std::shared_ptr<HostMembership> membership, int ranks_on_host,
                   std::chrono::milliseconds timeout);
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Starts the work when all have come with an equal call. Returns at the latest when waiting for them would
  // mean to sleep.
  void post(const GroupCall& call, const c10::intrusive_ptr<AgreedWork>& work);
  // Does in this thread what stands before the start of the work, unless another thread is at it.
  void help(const AgreedWork& work);
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // Blocks until what was posted has started, or one of them cannot.
  void drain();
  // Why the members on this host will not come; empty if nothing stands in the way. Looks for a moment.
  std::string obstacle() const;
  // Where they are.
  std::string describe() const { return meeting_->describe(); }
  // Tells them that a collective failed in the middle.
  void give_up(const std::string& reason) const;

 private:
  struct Job;
  void run();
  // Takes the first job and meets for it. The lock is given back meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock);
  // Comes to the call in the caller's thread; false if a member is late.
  bool come_and_start(const GroupCall& call, const c10::intrusive_ptr<AgreedWork>& work);

  std::shared_ptr<HostMembership> membership_;
  std::unique_ptr<GroupMeeting> meeting_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::condition_variable idle_;
  std::deque<std::unique_ptr<Job>> jobs_;
  bool is_busy_ = false;  // a thread is in the meeting
  std::atomic<bool> is_draining_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace meshtorch::internal
