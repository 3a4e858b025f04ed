// A c10d::Work that was over before it was returned.
#include "backends/completed_work.h"

#include <ATen/core/ivalue.h>

namespace meshtorch::internal {
namespace {

class CompletedWork : public c10d::Work {
 public:
  CompletedWork(int rank, std::vector<at::Tensor> results) : Work(rank), results_(std::move(results)) {
    finish();
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> completed_work(int rank, std::vector<at::Tensor> results) {
  return c10::make_intrusive<CompletedWork>(rank, std::move(results));
}

}  // namespace meshtorch::internal
