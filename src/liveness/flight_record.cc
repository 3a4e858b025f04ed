// The last collectives of one rank: how they are written as JSON, and when.
#include "liveness/flight_record.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "meshtorch/placement.h"

namespace meshtorch::internal {
namespace {

using nlohmann::ordered_json;

std::uint64_t read(const std::atomic<std::uint64_t>& word) { return word.load(std::memory_order_relaxed); }

// Where records go by themselves; empty: nowhere.
std::string asked_directory() {
  const char* directory = std::getenv("MESHTORCH_FLIGHT_RECORD");
  return directory == nullptr ? "" : directory;
}

int signal_pipe = -1;

void tell_of_signal(int) {
  const int error = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe, &byte, 1);
  errno = error;
}

// SIGUSR1 writes the records: the handler wakes a thread that may do what a handler may not. A handler that
// the program has set already stays.
void listen_for_signal() {
  struct sigaction before{};
  if (sigaction(SIGUSR1, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
  signal_pipe = ends[1];
  std::thread([in = ends[0]] {
    char byte = 0;
    while (::read(in, &byte, 1) == 1 || errno == EINTR) write_flight_records("SIGUSR1");
  }).detach();
  struct sigaction action{};
  action.sa_handler = &tell_of_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

struct Records {
  std::mutex mutex;
  std::map<int, std::weak_ptr<FlightRecord>> of_ranks;
};

// Records are asked for until the very end of the process.
Records& records() {
  static auto* const all = new Records;
  return *all;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

FlightRecord::FlightRecord(int rank, int world_size)
    : rank_(rank),
      world_size_(world_size),
      first_ticks_(now()),
      first_time_(std::chrono::system_clock::now()) {}

double FlightRecord::seconds_per_tick() const {
  const std::chrono::duration<double> passed = std::chrono::system_clock::now() - first_time_;
  return passed.count() / static_cast<double>(std::max<std::uint64_t>(now() - first_ticks_, 1));
}

std::string FlightRecord::origin_of(const Place& place) {
  std::array<std::uint64_t, kOriginWords + 1> words{};
  for (std::size_t w = 0; w < kOriginWords; ++w) words[w] = read(place.origin[w]);
  return reinterpret_cast<const char*>(words.data());
}

void FlightRecord::note_failure(const std::string& problem) {
  {
    const std::scoped_lock lock(mutex_);
    failure_ = problem;
    has_failed_ = true;
  }
  write_if_asked(problem);
}

std::string FlightRecord::failure() const {
  const std::scoped_lock lock(mutex_);
  return has_failed_ ? failure_ : "";
}

std::size_t FlightRecord::begin_again(std::size_t before) {
  const std::size_t index = next_place();
  Place& place = places_[index];
  const Place& old = places_[before];
  write(place.number, read(old.number));
  write(place.what, read(old.what));
  write(place.hash, read(old.hash));
  write(place.facts, read(old.facts));
  for (std::size_t d = 0; d < kDims; ++d) write(place.sizes[d], read(old.sizes[d]));
  for (std::size_t w = 0; w < kOriginWords; ++w) write(place.origin[w], read(old.origin[w]));
  return index;
}

std::string FlightRecord::latest() const {
  const std::size_t count = count_.load();
  if (count == 0) return {};
  const Place& place = places_[(count - 1) % kCalls];
  const std::string origin = origin_of(place);
  return c10::str(read(place.ended) == 0 ? "in " : "after ",
                  to_string(static_cast<CallKind>(read(place.what) & 0xFFFFFFFF)), " #", read(place.number),
                  origin.empty() ? "" : " for " + origin);
}

std::string FlightRecord::to_json(const std::string& reason) const {
  const std::scoped_lock lock(mutex_);
  const double first = std::chrono::duration<double>(first_time_.time_since_epoch()).count();
  const auto time_of = [&, tick = seconds_per_tick()](std::uint64_t ticks) {  // seconds since 1970
    return first + tick * static_cast<double>(ticks - first_ticks_);
  };
  ordered_json calls = ordered_json::array();
  const std::size_t count = count_.load();
  for (std::size_t i = count < kCalls ? 0 : count - kCalls; i < count; ++i) {
    const Place& place = places_[i % kCalls];
    const std::uint64_t what = read(place.what);
    const std::uint64_t facts = read(place.facts);
    const int type = static_cast<int>(facts >> 32) - 1;
    const int op = static_cast<int>(facts >> 16 & 0xFFFF) - 1;
    const std::size_t dims = facts & 0xFFFF;
    const Series& series = series_.at(what >> 32);
    ordered_json call{{"group", series.world_ranks},
                      {"number", read(place.number)},
                      {"collective", to_string(static_cast<CallKind>(what & 0xFFFFFFFF))},
                      {"agreed", read(place.hash)}};
    if (!series.lane.empty()) call["lane"] = series.lane;
    if (type >= 0) {
      call["type"] = c10::toString(static_cast<c10::ScalarType>(type));
      ordered_json& sizes = call["shape"] = ordered_json::array();
      for (std::size_t d = 0; d < std::min(dims, kDims); ++d) sizes.push_back(read(place.sizes[d]));
      if (dims > kDims) sizes.push_back("…");
    }
    if (op >= 0) call["reduction"] = to_string(static_cast<ReduceOp>(op));
    if (const std::string origin = origin_of(place); !origin.empty()) call["for"] = origin;
    call["began"] = time_of(read(place.began));
    if (const std::uint64_t ended = read(place.ended); ended != 0) call["ended"] = time_of(ended);
    calls.push_back(std::move(call));
  }
  const ordered_json all{{"rank", rank_},       {"world_size", world_size_}, {"host", host_name()},
                         {"pid", getpid()},     {"reason", reason},          {"written", time_of(now())},
                         {"calls_made", count}, {"calls", std::move(calls)}};
  return all.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void FlightRecord::write_to(const std::string& directory, const std::string& reason) const {
  const std::filesystem::path path =
      std::filesystem::path(directory) / ("rank_" + std::to_string(rank_) + ".json");
  const std::filesystem::path draft = path.string() + "." + std::to_string(getpid()) + ".draft";
  std::filesystem::create_directories(directory);
  std::ofstream out(draft, std::ios::binary);
  out << to_json(reason);
  out.close();
  TORCH_CHECK(out.good(), "meshtorch: the flight record of rank ", rank_, " cannot be written\n  to: ", path,
              "\n  do: name a directory that can be written to");
  std::filesystem::rename(draft, path);
}

void FlightRecord::write_if_asked(const std::string& reason) const noexcept {
  is_written_ = true;
  try {
    if (const std::string directory = asked_directory(); !directory.empty()) write_to(directory, reason);
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
}

std::shared_ptr<FlightRecord> known_flight_record_of(int rank) {
  Records& all = records();
  const std::scoped_lock lock(all.mutex);
  const auto known = all.of_ranks.find(rank);
  return known == all.of_ranks.end() ? nullptr : known->second.lock();
}

std::shared_ptr<FlightRecord> flight_record_of(int rank, int world_size) {
  Records& all = records();
  const std::scoped_lock lock(all.mutex);
  if (!asked_directory().empty() && signal_pipe < 0) listen_for_signal();
  std::weak_ptr<FlightRecord>& known = all.of_ranks[rank];
  auto record = known.lock();
  if (!record) known = record = std::make_shared<FlightRecord>(rank, world_size);
  return record;
}

void write_flight_records(const std::string& reason) {
  std::vector<std::shared_ptr<FlightRecord>> living;
  {
    Records& all = records();
    const std::scoped_lock lock(all.mutex);
    for (const auto& [rank, record] : all.of_ranks) {
      if (auto alive = record.lock()) living.push_back(std::move(alive));
    }
  }
  for (const auto& record : living) record->write_if_asked(reason);
}

}  // namespace meshtorch::internal
