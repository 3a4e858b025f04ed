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

#include "agreement/cross_host_agreement.h"
#include "agreement/shm_membership.h"
#include "signature/collective_signature.h"

namespace meshtorch::internal {

class AgreedWork;

// The other members of a group, as its work knows them.
class WorkPeers {
 public:
  virtual ~WorkPeers() = default;
  // What is known of them when work fails with these words.
  virtual std::string explain(const std::string& backend_words) const = 0;
  // Called by a thread that needs the work before it has started.
  virtual void help(const AgreedWork& work) const = 0;
  // This rank waits for them in the backend, goes on, or gave up.
  enum class Stage : std::uint8_t { waits, goes_on, gave_up };
  virtual void tell_wait(Stage stage) const = 0;
};

class AgreedWork : public c10d::Work {
 public:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  // It may be waited for after its group is gone.
  AgreedWork(int rank, Start start, std::weak_ptr<const WorkPeers> peers)
      : Work(rank), start_(std::move(start)), peers_(std::move(peers)) {}

  // Starts the work, or says why it will not be.
  void start();
  // `before_throw` runs once, when the program gets the error; may be null.
  void refuse(std::exception_ptr error, std::function<void()> before_throw);

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
  std::weak_ptr<const WorkPeers> peers_;
  mutable std::mutex own_mutex_;
  std::condition_variable settled_;
  bool is_settled_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  std::exception_ptr error_;
  std::function<void()> before_throw_;
};

// Meets the other members for each call of a group, in the order of the calls: in the caller while it can
// afford to watch for them, in a thread of its own where one is late.
class AgreementThread {
 public:
  // `hosts` are the meetings with the members on other hosts, null if there are none.
  AgreementThread(std::shared_ptr<HostMembership> membership, std::unique_ptr<GroupMeeting> meeting,
                  std::unique_ptr<HostsMeeting> hosts, std::chrono::milliseconds timeout);
  ~AgreementThread();
  AgreementThread(const AgreementThread&) = delete;
  AgreementThread& operator=(const AgreementThread&) = delete;

  // Starts the work when all have come with an equal call. Returns at the latest when waiting for them would
  // mean to sleep; it does not wait for other hosts.
  void post(const CollectiveSignature& call, const c10::intrusive_ptr<AgreedWork>& work);
  // Does in this thread what stands before the start of the work, unless another thread is at it.
  void help(const AgreedWork& work);
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // Blocks until what was posted has started, or one of them cannot.
  void drain();
  // Where the members on this host are.
  std::string describe() const { return meeting_->describe(); }
  std::string follow(const std::vector<int>& late) const { return meeting_->follow(late); }

 private:
  struct Job;
  void run();
  // Takes the first job and meets for it. The lock is given back meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock);
  // Comes to the call in the caller's thread; false if there is more to wait for.
  bool come_and_start(const CollectiveSignature& call, const c10::intrusive_ptr<AgreedWork>& work);
  bool come(const CollectiveSignature& call, std::unique_ptr<Declared> declared);
  // The rest of the meeting.
  void meet(const CollectiveSignature& call, bool have_all_come);

  std::shared_ptr<HostMembership> membership_;
  std::unique_ptr<GroupMeeting> meeting_;
  std::unique_ptr<HostsMeeting> hosts_;
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
