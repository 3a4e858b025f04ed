// Work that starts when the ranks have agreed on it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/group_call.h"
#include "comm/host_meeting.h"

namespace meshtorch {

class AgreedWork : public c10d::Work {
 public:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  // `explain` says what is known when the work fails.
  AgreedWork(int rank, Start start, std::function<std::string()> explain)
      : Work(rank), start_(std::move(start)), explain_(std::move(explain)) {}

  // Starts the work, or says why it will not be.
  void start();
  void refuse(std::exception_ptr error);

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
  std::function<std::string()> explain_;
  mutable std::mutex own_mutex_;
  std::condition_variable settled_;
  bool is_settled_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  std::exception_ptr error_;
};

// The thread that meets the other members for each call of a group, in the order of the calls.
class Courier {
 public:
  explicit Courier(std::shared_ptr<HostMembership> membership, int ranks_on_host,
                   std::chrono::milliseconds timeout);
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  void post(const GroupCall& call, c10::intrusive_ptr<AgreedWork> work);
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // Blocks until what was posted has started, or one of them cannot.
  void drain();
  // Where the ranks are, for messages; why they will not come, if that is known.
  std::string explain() const;

 private:
  struct Job;
  void run();

  std::shared_ptr<HostMembership> membership_;
  std::unique_ptr<GroupMeeting> meeting_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<Job>> jobs_;
  bool is_busy_ = false;
  std::atomic<bool> is_draining_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace meshtorch
