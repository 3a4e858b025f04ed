// Meetings of ranks that are processes of one host.
#include "comm/host_meeting.h"

#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <mutex>
#include <utility>

namespace meshtorch::internal {
std::string text_at(c10d::Store& store, const std::string& key) {
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

namespace {

void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

// The last of them to come lets all go on.
void wait_for_all(c10d::Store& store, const std::string& what, int size) {
  if (store.add(what + " count", 1) == size) set_text(store, what, "all");
  store.wait({what});
}

// Asked until the very end of the process.
struct Memberships {
  std::mutex mutex;
  std::vector<HostMembership*> all;
};
Memberships& memberships() {
  static auto* const known = new Memberships;
  return *known;
}

}  // namespace

HostMembership::HostMembership(c10d::Store& store, std::vector<int> world_ranks, int rank,
                               std::size_t stage_bytes)
    : world_ranks_(std::move(world_ranks)), rank_(rank) {
  const int size = static_cast<int>(world_ranks_.size());
  if (rank_ == 0) {
    segment_ = Segment::make(MeetingMemory::bytes_for(size, stage_bytes));
    memory_ = MeetingMemory::make(segment_->data(), size, stage_bytes);
    if (size > 1) set_text(store, "segment", segment_->address());
  } else {
    segment_ = Segment::open(text_at(store, "segment"));
    memory_ = static_cast<MeetingMemory*>(segment_->data());
  }
  MeetingSlot& mine = memory_->slot(rank_);
  mine.process = getpid();
  mine.process_start = process_start(getpid());
  if (size > 1) wait_for_all(store, "attached", size);
  segment_->close_door();
  const std::scoped_lock lock(memberships().mutex);
  memberships().all.push_back(this);
}

HostMembership::~HostMembership() {
  {
    const std::scoped_lock lock(memberships().mutex);
    std::erase(memberships().all, this);
  }
  leave();
}

std::unique_ptr<GroupMeeting> HostMembership::meeting(int ranks_on_host) {
  record_ = flight_record_of(world_ranks_[static_cast<std::size_t>(rank_)], ranks_on_host);
  GroupMeeting::Company company{
      world_ranks_,
      ranks_on_host,
      /*are_processes=*/true,
      [this] { return obstacle(); },
      record_,
      [record = record_](const std::string& problem) { record->note_failure(problem); }};
  return std::make_unique<GroupMeeting>(*memory_, rank_, std::move(company));
}

// A child that a rank has forked holds the same memory, and is no member.
bool HostMembership::is_of_this_process() const { return memory_->slot(rank_).process == getpid(); }

void HostMembership::leave() {
  if (!is_of_this_process()) return;
  if (record_ && memory_->slot(rank_).has_left.exchange(1) == 0) record_->write_at_end("the rank left");
  memory_->slot(rank_).has_left = 1;
  ring(*memory_);
}

void HostMembership::say(LastWords meaning, const std::string& text) {
  if (!is_of_this_process()) return;
  if (meaning == LastWords::gave_up && record_) record_->note_failure("a collective " + text);
  memory_->slot(rank_).say(meaning, text);
  ring(*memory_);
}

void say_in_all_groups(LastWords meaning, const std::string& text) noexcept {
  const std::unique_lock lock(memberships().mutex, std::try_to_lock);
  if (!lock) return;
  for (HostMembership* membership : memberships().all) membership->say(meaning, text);
}

constexpr const char* kGaveUp = " gave up, since a collective ";

bool blames_nobody(const std::string& obstacle) { return obstacle.find(kGaveUp) != std::string::npos; }

// A rank that said why it goes is at fault, then one that died without a word, then one that returned; those
// who gave up knew who it was.
std::string HostMembership::obstacle() const {
  if (is_stopping_)
    return c10::str("rank ", world_ranks_[static_cast<std::size_t>(rank_)], " leaves the group");
  const auto name = [&](int r) { return c10::str("rank ", world_ranks_[static_cast<std::size_t>(r)]); };
  std::string died;
  std::string returned;
  std::string gave_up;
  for (int r = 0; r < static_cast<int>(memory_->size); ++r) {
    const MeetingSlot& slot = memory_->slot(r);
    if (r == rank_) continue;
    const LastWords words = slot.last_words;
    if (words == LastWords::farewell) return name(r) + " " + slot.read_words();
    const bool has_left = slot.has_left != 0;
    if (!has_left && process_start(slot.process) == slot.process_start) continue;
    if (words == LastWords::gave_up) {
      gave_up = c10::str(name(r), kGaveUp, slot.read_words());
    } else if (has_left) {
      returned = name(r) + " has already returned";
    } else {
      died = c10::str(name(r), " has died (process ", slot.process.load(), ")",
                      words == LastWords::error ? ", having failed: " + slot.read_words() : "");
    }
  }
  return !died.empty() ? died : !returned.empty() ? returned : gave_up;
}

std::vector<int> members_on_host(c10d::Store& store, int rank, int size) {
  const std::string mine = host_identity();
  set_text(store, c10::str("host of ", rank), mine);
  std::vector<int> members;
  for (int r = 0; r < size; ++r) {
    if (r == rank || text_at(store, c10::str("host of ", r)) == mine) members.push_back(r);
  }
  return members;
}

bool ranks_share_host(const c10::intrusive_ptr<c10d::Store>& given, int rank, int size) {
  if (size == 1) return true;
  c10d::PrefixStore store("hosts", given);
  const std::string mine = host_identity();
  if (rank == 0) set_text(store, "first", mine);
  store.add("others", text_at(store, "first") == mine ? 0 : 1);
  wait_for_all(store, "compared", size);
  return store.add("others", 0) == 0;
}

}  // namespace meshtorch::internal
