// Meetings of a group whose members are on several hosts.
#include "agreement/cross_host_agreement.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/error_text.h"
#include "runtime/host_tensor.h"

namespace meshtorch::internal {
namespace {

using std::chrono::milliseconds;

// The first member looks for the reason of a failure before it tells the others of its host.
constexpr milliseconds kTimeToExplain(10000);
constexpr std::size_t kWords = 1000;  // of each rank, between hosts

// What the first members of the hosts compare of each call.
struct Header {
  CallHash hash;
  std::uint64_t subject;  // of those that know it
  std::uint64_t is_of_one_mind;
  std::uint64_t has_splits;
};

// A rank's call, as it travels between hosts.
struct WordsOfRank {
  std::uint64_t number;
  char words[kWords];
};

// How a finding lies in the stage of the first member.
struct FindingHead {
  std::uint64_t verdict;
  std::uint64_t number;
  std::uint64_t length;
  std::uint64_t samples;  // how many lie behind the text
};

template <class Value>
std::vector<char> bytes_of(const Value& value) {
  const char* begin = reinterpret_cast<const char*>(&value);
  return {begin, begin + sizeof(value)};
}

template <class Value>
Value value_at(const char* place) {
  Value value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}

}  // namespace

HostsMeeting::HostsMeeting(GroupMeeting& here, Places places, c10::intrusive_ptr<c10d::Backend> first_ones,
                           Explain explain, TellWait tell_wait)
    : here_(here),
      places_(std::move(places)),
      first_ones_(std::move(first_ones)),
      explain_(std::move(explain)),
      tell_wait_(std::move(tell_wait)) {
  TORCH_INTERNAL_ASSERT(is_first() == static_cast<bool>(first_ones_));
}

std::size_t HostsMeeting::stage_bytes(std::size_t members) {
  return sizeof(FindingHead) +
         members * (kWords + 64 + sizeof(ReplicaSample));  // the numbers of bring() are fewer
}

std::size_t HostsMeeting::most_members() const {
  std::size_t most = 0;
  for (const std::vector<int>& host : places_.hosts) most = std::max(most, host.size());
  return most;
}

void HostsMeeting::bring(const CollectiveSignature& call) {
  const CallSplits* splits = call.splits();
  if (splits == nullptr) return;
  char* stage = here_.stage();
  std::memcpy(stage, splits->sends.data(), splits->sends.size_bytes());
  std::memcpy(stage + splits->sends.size_bytes(), splits->receives.data(), splits->receives.size_bytes());
}

void HostsMeeting::meet(const CollectiveSignature& call, bool have_all_come, milliseconds timeout) {
  here_.wait_for_all(have_all_come, timeout);
  Finding found = found_by_first([&] { return compare_hashes(call); }, timeout);
  const std::vector<ReplicaSample> samples = std::move(found.samples);
  if (found.verdict == Verdict::equal && call.splits() != nullptr)
    found = found_by_first([&] { return compare_splits(call); }, timeout);
  MeetingSlot& mine = here_.memory().slot(static_cast<int>(places_.member));
  if (found.verdict == Verdict::different) {
    mine.write_words(here_.words(call));
    here_.sync(timeout);
    found = found_by_first([&] { return collect_words(); }, timeout);
  }
  switch (found.verdict) {
    case Verdict::equal:
      if (here_.compares_replica()) here_.check_replica(samples, places_.world_ranks, timeout);
      return;
    case Verdict::different:
      mine.calls.store(found.number, std::memory_order_relaxed);
      here_.leave();
      here_.disagreement(found.text);
    case Verdict::splits:
      here_.leave();
      here_.mismatch(found.text);
    case Verdict::failed:
      here_.note_failure("the hosts of a group could not compare a collective: " + found.text);
      here_.leave();
      here_.memory().is_broken.store(1);
      TORCH_CHECK(false, "meshtorch: the hosts of a group cannot compare a collective\n  ", found.text,
                  "\n  do: see what happened to the rank that is gone or late");
  }
}

HostsMeeting::Finding HostsMeeting::found_by_first(const std::function<Finding()>& find,
                                                   milliseconds timeout) {
  if (is_first()) {
    Finding finding;
    tell_wait_(true);
    try {
      finding = find();
      tell_wait_(false);
    } catch (...) {
      const std::string words = error_text(std::current_exception());
      finding = {Verdict::failed, 0, explain_(words) + "\n  backend: " + words};
    }
    const std::size_t samples = finding.samples.size() * sizeof(ReplicaSample);
    const std::size_t room = here_.stage_bytes() - sizeof(FindingHead) - samples;
    const std::string text = finding.text.substr(0, room);
    const FindingHead head{static_cast<std::uint64_t>(finding.verdict), finding.number, text.size(),
                           finding.samples.size()};
    char* end = here_.stage();
    const auto write = [&end](const void* data, std::size_t bytes) {
      if (bytes > 0) std::memcpy(end, data, bytes);
      end += bytes;
    };
    write(&head, sizeof(head));
    write(text.data(), text.size());
    write(finding.samples.data(), samples);
  }
  here_.next_stage(timeout + kTimeToExplain);
  const char* stage = here_.stage_of(0);
  const auto head = value_at<FindingHead>(stage);
  const char* text = stage + sizeof(head);
  std::vector<ReplicaSample> samples(head.samples);
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = value_at<ReplicaSample>(text + head.length + i * sizeof(ReplicaSample));
  return {static_cast<Verdict>(head.verdict), head.number,
          std::string(text, static_cast<std::size_t>(head.length)), std::move(samples)};
}

std::vector<std::vector<char>> HostsMeeting::exchange(const std::vector<char>& mine) const {
  const c10::InferenceMode is_off(false);
  const auto size = static_cast<std::int64_t>(mine.size());
  const auto room = [&] { return at::empty({size}, on_host(at::kByte)); };
  std::vector<at::Tensor> inputs{room()};
  std::memcpy(inputs[0].mutable_data_ptr(), mine.data(), mine.size());
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (std::size_t h = 0; h < places_.hosts.size(); ++h) outputs[0].push_back(room());
  first_ones_->allgather(outputs, inputs, c10d::AllgatherOptions())->wait();
  std::vector<std::vector<char>> shown;
  for (const at::Tensor& row : outputs[0]) {
    const char* begin = static_cast<const char*>(row.const_data_ptr());
    shown.emplace_back(begin, begin + size);
  }
  return shown;
}

std::vector<ReplicaSample> HostsMeeting::samples_here() const {
  std::vector<ReplicaSample> samples(most_members());
  for (std::size_t m = 0; m < places_.hosts[places_.host].size(); ++m)
    samples[m] = here_.call_slot_of(static_cast<int>(m)).replica;
  return samples;
}

HostsMeeting::Finding HostsMeeting::compare_hashes(const CollectiveSignature& call) const {
  CommonSubject subject;
  for (int member = 0; member < here_.size(); ++member) subject.add(here_.call_slot_of(member).subject);
  const Header mine{here_.call_slot_of(0).hash, subject.get(), here_.is_of_one_mind() ? 1U : 0U,
                    call.splits() != nullptr ? 1U : 0U};
  // Rows are equally long also where hosts call different things, of which one compares no replica.
  std::vector<char> row = bytes_of(mine);
  for (const ReplicaSample& sample : samples_here()) {
    const std::vector<char> bytes = bytes_of(sample);
    row.insert(row.end(), bytes.begin(), bytes.end());
  }
  const std::vector<std::vector<char>> rows = exchange(row);
  Finding found;
  if (here_.compares_replica()) found.samples.resize(places_.world_ranks.size());
  for (std::size_t h = 0; h < rows.size(); ++h) {
    const auto theirs = value_at<Header>(rows[h].data());
    if (theirs.hash != mine.hash || !subject.add(theirs.subject) || theirs.is_of_one_mind == 0 ||
        theirs.has_splits != mine.has_splits)
      return {Verdict::different};
    if (found.samples.empty()) continue;
    for (std::size_t m = 0; m < places_.hosts[h].size(); ++m)
      found.samples[static_cast<std::size_t>(places_.hosts[h][m])] =
          value_at<ReplicaSample>(rows[h].data() + sizeof(Header) + m * sizeof(ReplicaSample));
  }
  return found;
}

HostsMeeting::Finding HostsMeeting::collect_words() const {
  std::vector<char> mine(most_members() * sizeof(WordsOfRank));
  for (std::size_t m = 0; m < places_.hosts[places_.host].size(); ++m) {
    const MeetingSlot& slot = here_.memory().slot(static_cast<int>(m));
    WordsOfRank words{slot.calls.load(std::memory_order_relaxed), {}};
    slot.read_words().copy(words.words, kWords - 1);
    std::memcpy(mine.data() + m * sizeof(words), &words, sizeof(words));
  }
  const auto shown = exchange(mine);
  std::vector<RankCall> calls(places_.world_ranks.size());
  for (std::size_t h = 0; h < places_.hosts.size(); ++h) {
    for (std::size_t m = 0; m < places_.hosts[h].size(); ++m) {
      const auto words = value_at<WordsOfRank>(shown[h].data() + m * sizeof(WordsOfRank));
      const auto member = static_cast<std::size_t>(places_.hosts[h][m]);
      calls[member] = {places_.world_ranks[member], words.number, words.words};
    }
  }
  return {Verdict::different, last_number(calls), table_of(calls)};
}

HostsMeeting::Finding HostsMeeting::compare_splits(const CollectiveSignature& call) const {
  const std::size_t size = places_.world_ranks.size();
  const std::size_t row_bytes = 2 * size * sizeof(std::int64_t);
  std::vector<char> mine(most_members() * row_bytes);
  for (std::size_t m = 0; m < places_.hosts[places_.host].size(); ++m)
    std::memcpy(mine.data() + m * row_bytes, here_.stage_brought_by(static_cast<int>(m)), row_bytes);
  const auto shown = exchange(mine);
  std::vector<std::vector<std::int64_t>> numbers(size, std::vector<std::int64_t>(2 * size));
  for (std::size_t h = 0; h < places_.hosts.size(); ++h) {
    for (std::size_t m = 0; m < places_.hosts[h].size(); ++m)
      std::memcpy(numbers[static_cast<std::size_t>(places_.hosts[h][m])].data(),
                  shown[h].data() + m * row_bytes, row_bytes);
  }
  std::string mismatch =
      find_mismatch(call, places_.world_ranks, [&](std::size_t member) { return numbers[member].data(); });
  if (mismatch.empty()) return {Verdict::equal};
  return {Verdict::splits, 0, std::move(mismatch)};
}

}  // namespace meshtorch::internal
