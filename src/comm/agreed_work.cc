// Work that starts when the ranks have agreed on it, and the thread that meets them for it.
#include "comm/agreed_work.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <utility>

#include "comm/error_text.h"

namespace meshtorch {

// A call that outlives its arguments.
class StoredCall : public GroupCall {
 public:
  explicit StoredCall(const GroupCall& call) : GroupCall(call.kind()), text_(call.text()) {
    hash_ = call.hash();
    if (call.splits() == nullptr) return;
    sends_.assign(call.splits()->sends.begin(), call.splits()->sends.end());
    receives_.assign(call.splits()->receives.begin(), call.splits()->receives.end());
    own_splits_ = {sends_, receives_, call.splits()->unit};
    splits_ = &own_splits_;
  }
  StoredCall(const StoredCall&) = delete;
  StoredCall& operator=(const StoredCall&) = delete;
  std::string text() const override { return text_; }

 private:
  std::string text_;
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

void AgreedWork::refuse(std::exception_ptr error) { settle({}, std::move(error)); }

void AgreedWork::settle(c10::intrusive_ptr<c10d::Work> work, std::exception_ptr error) {
  const std::scoped_lock lock(own_mutex_);
  work_ = std::move(work);
  error_ = std::move(error);
  start_ = nullptr;
  is_settled_ = true;
  settled_.notify_all();
}

const c10::intrusive_ptr<c10d::Work>& AgreedWork::started() {
  std::unique_lock lock(own_mutex_);
  settled_.wait(lock, [&] { return is_settled_; });
  if (error_) std::rethrow_exception(error_);
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
  try {
    return work->wait(timeout);
  } catch (...) {
    const std::string reason = error_text(std::current_exception());
    TORCH_CHECK(false, "meshtorch: a collective failed after all ranks had come\n  ", explain_(),
                "\n  backend: ", reason, "\n  do: see what happened to the rank that is gone or late");
  }
}

struct Courier::Job {
  Job(const GroupCall& given, c10::intrusive_ptr<AgreedWork> its_work)
      : call(given), work(std::move(its_work)) {}
  StoredCall call;
  c10::intrusive_ptr<AgreedWork> work;
  // Tensors of the caller may be those of inference mode: they are written in the caller's mode.
  const bool is_inference = c10::InferenceMode::is_enabled();
};

Courier::Courier(std::shared_ptr<HostMembership> membership, int ranks_on_host,
                 std::chrono::milliseconds timeout)
    : membership_(std::move(membership)),
      meeting_(membership_->meeting(ranks_on_host)),
      timeout_(timeout),
      thread_([this] { run(); }) {}

Courier::~Courier() {
  drain();
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  posted_.notify_all();
  thread_.join();
}

void Courier::post(const GroupCall& call, c10::intrusive_ptr<AgreedWork> work) {
  auto job = std::make_unique<Job>(call, std::move(work));
  const std::scoped_lock lock(mutex_);
  jobs_.push_back(std::move(job));
  posted_.notify_all();
}

void Courier::drain() {
  std::unique_lock lock(mutex_);
  is_draining_ = true;
  idle_.wait(lock, [&] { return jobs_.empty() && !is_busy_; });
}

std::string Courier::explain() const {
  // A process that is gone shows so a moment after its connections are closed.
  for (int i = 0; i < 20; ++i) {
    if (std::string obstacle = membership_->obstacle(); !obstacle.empty()) return obstacle;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return meeting_->describe();
}

void Courier::run() {
  c10::setThreadName("mt_courier");
  for (;;) {
    std::vector<std::unique_ptr<Job>> jobs;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return is_ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      jobs.swap(jobs_);
      is_busy_ = true;
    }
    for (const auto& job : jobs) {
      try {
        meeting_->brought() = {};
        meeting_->enter(job->call, timeout_);
        meeting_->leave();
        const c10::InferenceMode as_caller(job->is_inference);
        job->work->start();
      } catch (...) {
        job->work->refuse(std::current_exception());
        if (is_draining_) membership_->stop_waiting();  // nobody asks for the rest
      }
    }
    const std::scoped_lock lock(mutex_);
    is_busy_ = false;
    idle_.notify_all();
  }
}

}  // namespace meshtorch
