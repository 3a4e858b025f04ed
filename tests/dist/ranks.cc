// Ranks for tests: threads here, or the processes that a launcher started.
#include "ranks.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

namespace meshtorch::testing {
namespace {

constexpr std::chrono::milliseconds kTimeout = std::chrono::minutes(1);

int process_rank() { return std::atoi(std::getenv("RANK")); }

// What MESHTORCH_TEST_BACKEND names, else the default.
std::string process_backend() {
  const char* name = std::getenv("MESHTORCH_TEST_BACKEND");
  return name == nullptr ? "" : name;
}

// One store for the whole run; each world that a test makes lives under a prefix of its own.
c10::intrusive_ptr<c10d::Store> process_store() {
  static const auto store = [] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
    options.isServer = process_rank() == 0;
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options);
  }();
  return store;
}

void on_processes(int n, const std::function<void(int rank)>& body) {
  static int worlds = 0;
  const std::string prefix = "world " + std::to_string(worlds++);
  TORCH_CHECK(n <= std::atoi(std::getenv("WORLD_SIZE")), "the test needs ", n, " processes");
  if (process_rank() >= n) return;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, process_store());
  try {
    init_process_group(
        store, {.backend = process_backend(), .rank = process_rank(), .world_size = n, .timeout = kTimeout});
    body(process_rank());
    barrier();  // nobody leaves while others still connect to it
  } catch (const c10::Error& error) {
    ADD_FAILURE() << "rank " << process_rank() << ": " << error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << process_rank() << ": " << error.what();
  }
  if (is_initialized()) destroy_process_group();
}

// Rank 0 serves the store: it leaves last.
void leave_together() {
  const int world_size = std::atoi(std::getenv("WORLD_SIZE"));
  process_store()->add("left", 1);
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  while (process_rank() == 0 && process_store()->add("left", 0) < world_size &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

bool ranks_are_processes() { return std::getenv("WORLD_SIZE") != nullptr; }
bool ranks_share_memory() { return !ranks_are_processes() || process_backend() != "gloo"; }

void on_ranks(int n, const std::function<void(int rank)>& body) {
  if (ranks_are_processes()) {
    on_processes(n, body);
    return;
  }
  try {
    spawn(n, body, {.timeout = kTimeout});
  } catch (const RankError& error) {
    ADD_FAILURE() << error.what();
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

::testing::AssertionResult is_equal(const torch::Tensor& actual, const torch::Tensor& expected) {
  if (actual.scalar_type() == expected.scalar_type() && actual.sizes() == expected.sizes() &&
      torch::equal(actual, expected)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "got\n" << actual << "\nexpected\n" << expected;
}

::testing::AssertionResult is_close(const torch::Tensor& actual, const torch::Tensor& expected,
                                    double tolerance) {
  if (actual.scalar_type() == expected.scalar_type() && actual.sizes() == expected.sizes() &&
      torch::allclose(actual, expected, tolerance, tolerance, /*equal_nan=*/true)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "got\n" << actual << "\nexpected\n" << expected;
}

}  // namespace meshtorch::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (meshtorch::testing::ranks_are_processes()) meshtorch::testing::leave_together();
  return result;
}
