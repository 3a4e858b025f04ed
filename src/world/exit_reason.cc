// Exit reasons of ranks, and the hooks that notice the end of a process.
#include "world/exit_reason.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include "agreement/shm_membership.h"
#include "backends/backend_traits.h"
#include "liveness/flight_record.h"
#include "liveness/remote_ranks.h"
#include "runtime/error_text.h"
#include "world/rank_context.h"

namespace meshtorch::internal {
namespace {

std::terminate_handler terminate_before = nullptr;

[[noreturn]] void tell_and_terminate() {
  static std::atomic<bool> is_telling = false;
  if (!is_telling.exchange(true)) {
    const auto error = std::current_exception();
    announce_exit("failed", error ? error_text(error) : "std::terminate was called");
  }
  terminate_before();
  std::abort();
}

// Of the C library: after main() returns or exit() is called, before objects of the program are destroyed.
void tell_of_exit(int code, void*) {
  announce_exit(c10::str("has exited with code ", code), "it did not call destroy_process_group()");
}

}  // namespace

void announce_exit(const std::string& end, const std::string& reason) noexcept {
  try {
    const auto context = current_rank_or_null();
    if (!context || context->world().threads) return;  // the world of threads knows
    const World& world = context->world();
    const auto record = flight_record_of(world.rank, world.size);
    const std::string where = record->latest();
    // A rank that goes because of another says so in groups that the other is not in.
    const std::string failure = record->failure();
    const std::string words = c10::str(end, where.empty() ? "" : " " + where, " (process ", getpid(), " on ",
                                       host_name(), "): ", failure.empty() ? reason : failure);
    say_in_all_groups(ExitReason::left, words);
    if (traits_of(world.backend).tells_by_store) write_exit_reason(world.store, world.rank, words);
  } catch (...) {  // the ranks that wait see that the process is gone
  }
}

void note_failed_operator(const std::string& name, const std::exception_ptr& error) noexcept {
  try {
    const auto context = current_rank_or_null();
    if (!context || context->world().size == 1) return;
    const std::string text = c10::str(name, ": ", error_text(error));
    if (const auto& threads = context->world().threads) {
      threads->note_error(context->world().rank, text);
    } else {
      say_in_all_groups(ExitReason::error, text);
    }
  } catch (...) {  // the error itself is on its way
  }
}

namespace {

FailedCall::Kind kind_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::IndexError&) {
    return FailedCall::Kind::index;
  } catch (const c10::ValueError&) {
    return FailedCall::Kind::value;
  } catch (const c10::NotImplementedError&) {
    return FailedCall::Kind::not_implemented;
  } catch (...) {
    return FailedCall::Kind::error;
  }
}

// Whether the error is that of the latest collective, as its words tell: a call may wait for one inside.
bool is_of_collective(const std::exception_ptr& error, const std::string& failure) {
  if (failure.empty()) return false;
  const std::size_t details = failure.find('\n');
  return error_text(error).find(details == std::string::npos ? failure : failure.substr(details)) !=
         std::string::npos;
}

}  // namespace

void tell_failed_call(const std::vector<std::int64_t>& ranks, const std::exception_ptr& error) noexcept {
  try {
    const auto context = current_rank_or_null();
    if (!context || context->world().size == 1) return;
    const World& world = context->world();
    if (is_of_collective(error, flight_record_of(world.rank, world.size)->failure())) return;
    const CallOrigin* origin = CallOrigin::current();
    FailedCall failed{world.rank,
                      kind_of(error),
                      c10::str(origin == nullptr ? "" : origin->name() + ": ", error_text(error)),
                      {ranks.begin(), ranks.end()}};
    std::sort(failed.concerned.begin(), failed.concerned.end());
    if (world.threads) {
      world.threads->tell_failure(world.rank, failed, world.timeout);
    } else {
      tell_failure_in_all_groups(failed, world.timeout);
    }
  } catch (...) {  // the error itself is on its way
  }
}

void watch_end_of_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    terminate_before = std::set_terminate(&tell_and_terminate);
    on_exit(&tell_of_exit, nullptr);
  });
}

}  // namespace meshtorch::internal
