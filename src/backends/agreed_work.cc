// Work that starts when the ranks have agreed on it, and the thread that meets them for it.
#include "backends/agreed_work.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <utility>

#include "runtime/error_text.h"

namespace meshtorch::internal {

namespace {

// A caller that waits for its result soon meets by itself, which saves two changes of threads.
constexpr std::chrono::microseconds kCallersChance(300);

}  // namespace

// A call that outlives its arguments.
class StoredSignature : public CollectiveSignature {
 public:
  explicit StoredSignature(const CollectiveSignature& call)
      : CollectiveSignature(call), description_(call.description()) {
    facts_ = {};
    splits_ = nullptr;
    if (call.splits() == nullptr) return;
    sends_.assign(call.splits()->sends.begin(), call.splits()->sends.end());
    receives_.assign(call.splits()->receives.begin(), call.splits()->receives.end());
    own_splits_ = {sends_, receives_, call.splits()->unit};
    splits_ = &own_splits_;
  }
  StoredSignature(const StoredSignature&) = delete;
  StoredSignature& operator=(const StoredSignature&) = delete;
  std::string description() const override { return description_; }

 private:
  std::string description_;
  std::vector<std::int64_t> sends_;
  std::vector<std::int64_t> receives_;
  CallSplits own_splits_{};
};

void AgreedWork::start() {
  try {
    settle(start_(), nullptr);
  } catch (...) {
    settle({}, std::current_exception());
  }
}

void AgreedWork::refuse(std::exception_ptr error, std::function<void()> before_throw) {
  {
    const std::scoped_lock lock(own_mutex_);
    before_throw_ = std::move(before_throw);
  }
  settle({}, std::move(error));
}

void AgreedWork::settle(c10::intrusive_ptr<c10d::Work> work, std::exception_ptr error) {
  const std::scoped_lock lock(own_mutex_);
  work_ = std::move(work);
  error_ = std::move(error);
  start_ = nullptr;
  is_settled_ = true;
  settled_.notify_all();
}

bool AgreedWork::is_settled() const {
  const std::scoped_lock lock(own_mutex_);
  return is_settled_;
}

const c10::intrusive_ptr<c10d::Work>& AgreedWork::started() {
  if (!is_settled()) {
    if (const auto peers = peers_.lock()) peers->help(*this);
  }
  std::unique_lock lock(own_mutex_);
  settled_.wait(lock, [&] { return is_settled_; });
  if (error_) {
    if (const auto act = std::exchange(before_throw_, nullptr)) act();
    std::rethrow_exception(error_);
  }
  return work_;
}

bool AgreedWork::isCompleted() {
  const std::scoped_lock lock(own_mutex_);
  return is_settled_ && (error_ || work_->isCompleted());
}

bool AgreedWork::isSuccess() const {
  const std::scoped_lock lock(own_mutex_);
  return is_settled_ && !error_ && work_->isSuccess();
}

std::exception_ptr AgreedWork::exception() const {
  const std::scoped_lock lock(own_mutex_);
  return error_ || !work_ ? error_ : work_->exception();
}

bool AgreedWork::wait(std::chrono::milliseconds timeout) {
  const auto& work = started();
  if (work->isCompleted()) return work->wait(timeout);
  const auto peers = peers_.lock();
  try {
    if (peers) peers->tell_wait(WorkPeers::Stage::waits);
    const bool is_done = work->wait(timeout);
    if (peers) peers->tell_wait(WorkPeers::Stage::goes_on);
    return is_done;
  } catch (...) {
    if (peers) peers->tell_wait(WorkPeers::Stage::gave_up);
    const std::string reason = error_text(std::current_exception());
    C10_THROW_ERROR(Error, c10::str("meshtorch: a collective failed after all ranks had come\n  ",
                                    peers ? peers->explain(reason) : "the group is gone", "\n  backend: ",
                                    reason, "\n  do: see what happened to the rank that is gone or late"));
  }
}

struct AgreementThread::Job {
  Job(const CollectiveSignature& given, c10::intrusive_ptr<AgreedWork> its_work, bool came,
      std::unique_ptr<Declared> declared_before)
      : call(given), work(std::move(its_work)), has_come(came), declared(std::move(declared_before)) {}
  StoredSignature call;
  c10::intrusive_ptr<AgreedWork> work;
  bool has_come;  // the caller came to the meeting and found that there is more to wait for
  std::unique_ptr<Declared> declared;
  const std::chrono::steady_clock::time_point posted = std::chrono::steady_clock::now();
  // Tensors of the caller may be those of inference mode: they are written in the caller's mode.
  const bool is_inference = c10::InferenceMode::is_enabled();
};

AgreementThread::AgreementThread(std::shared_ptr<HostMembership> membership,
                                 std::unique_ptr<GroupMeeting> meeting, std::unique_ptr<HostsMeeting> hosts,
                                 std::chrono::milliseconds timeout)
    : membership_(std::move(membership)),
      meeting_(std::move(meeting)),
      hosts_(std::move(hosts)),
      timeout_(timeout),
      thread_([this] { run(); }) {
  meeting_->defer_restarts();
}

AgreementThread::~AgreementThread() {
  drain();
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  posted_.notify_all();
  thread_.join();
}

void AgreementThread::post(const CollectiveSignature& call, const c10::intrusive_ptr<AgreedWork>& work) {
  std::unique_lock lock(mutex_);
  bool has_come = false;
  if (jobs_.empty() && !is_busy_) {
    is_busy_ = true;
    lock.unlock();
    has_come = !come_and_start(call, work);
    lock.lock();
    is_busy_ = false;
    idle_.notify_all();
    if (!has_come) {
      if (!jobs_.empty()) posted_.notify_all();
      return;
    }
    // Before what other threads posted meanwhile.
    jobs_.push_front(std::make_unique<Job>(call, work, has_come, nullptr));
  } else {
    jobs_.push_back(std::make_unique<Job>(call, work, has_come, meeting_->take_declared(call)));
  }
  posted_.notify_all();
}

bool AgreementThread::come_and_start(const CollectiveSignature& call,
                                     const c10::intrusive_ptr<AgreedWork>& work) {
  try {
    if (!come(call, meeting_->take_declared(call)) || hosts_) return false;
    meet(call, /*have_all_come=*/true);
  } catch (...) {
    work->refuse(std::current_exception(), meeting_->take_restart());
    return true;
  }
  work->start();
  return true;
}

bool AgreementThread::come(const CollectiveSignature& call, std::unique_ptr<Declared> declared) {
  meeting_->call_slot() = {};
  if (hosts_) hosts_->bring(call);
  return meeting_->come(call, std::move(declared));
}

void AgreementThread::meet(const CollectiveSignature& call, bool have_all_come) {
  if (hosts_) {
    hosts_->meet(call, have_all_come, timeout_);
  } else {
    meeting_->meet(call, have_all_come, timeout_);
  }
  meeting_->leave();
}

void AgreementThread::drain() {
  std::unique_lock lock(mutex_);
  is_draining_ = true;
  posted_.notify_all();
  idle_.wait(lock, [&] { return jobs_.empty() && !is_busy_; });
}

void AgreementThread::help(const AgreedWork& work) {
  std::unique_lock lock(mutex_);
  while (!is_busy_ && !jobs_.empty() && !work.is_settled()) run_first(lock);
}

void AgreementThread::run_first(std::unique_lock<std::mutex>& lock) {
  std::unique_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  is_busy_ = true;
  lock.unlock();
  try {
    meet(job->call, !job->has_come && come(job->call, std::move(job->declared)));
    const c10::InferenceMode as_caller(job->is_inference);
    job->work->start();
  } catch (...) {
    job->work->refuse(std::current_exception(), meeting_->take_restart());
    if (is_draining_) membership_->stop_waiting();  // nobody asks for the rest
  }
  job.reset();
  lock.lock();
  is_busy_ = false;
  idle_.notify_all();
  if (!jobs_.empty()) posted_.notify_all();
}

void AgreementThread::run() {
  c10::setThreadName("mt_courier");
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return !is_busy_ && (is_ending_ || !jobs_.empty()); });
    if (jobs_.empty()) return;
    const auto due = jobs_.front()->posted + kCallersChance;
    if (!is_draining_ && std::chrono::steady_clock::now() < due) {
      posted_.wait_until(lock, due, [&] { return is_draining_.load(); });
    } else {
      run_first(lock);
    }
  }
}

}  // namespace meshtorch::internal
