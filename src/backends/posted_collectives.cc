// Collectives in two halves: what is shown lies in segments that all ranks have mapped, who has come how far
// in the memory of the group's meetings.
#include "backends/posted_collectives.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace meshtorch::internal {
namespace {

constexpr std::size_t kRoomStep = std::size_t{64} << 10;

std::size_t place_of(std::uint64_t number) { return number % kNoticePlaces; }

const char* name_of(Lane lane) {
  constexpr std::array<const char*, kNoticeLanes> kNames{"gather", "reduce", "message"};
  return kNames[static_cast<std::size_t>(lane)];
}

}  // namespace

PostedCollectives::Posting::Posting(PostedCollectives& board, std::shared_ptr<void> keeps_alive, Lane lane,
                                    std::uint64_t number)
    : keeps_alive_(std::move(keeps_alive)), board_(board), lane_(lane), number_(number) {}

PostedCollectives::Posting::~Posting() {
  if (is_over_) return;
  if (shows_replica_) board_.replicas_->pass_over();
  board_.mark_taken(lane_, number_);
}

void PostedCollectives::Posting::finish() {
  if (std::exchange(is_over_, true)) return;
  const auto take = std::exchange(take_, nullptr);
  const auto words = std::exchange(words_, nullptr);
  FlightRecord* record = board_.meeting_.record();
  const std::size_t place = record == nullptr ? 0 : record->begin_again(place_in_record_);
  try {
    board_.agree(lane_, number_, words);
    board_.compare_replicas(lane_, number_);
    std::vector<const char*> shown;
    for (const auto& room : board_.state(lane_).places[place_of(number_)].rooms)
      shown.push_back(static_cast<const char*>(room->data()));
    take(shown);
  } catch (...) {
    board_.mark_taken(lane_, number_);
    throw;
  }
  board_.mark_taken(lane_, number_);
  if (record != nullptr) record->end(place);
}

std::size_t PostedCollectives::keep(Lane lane, std::uint64_t number, const CollectiveSignature& call) {
  FlightRecord* record = meeting_.record();
  if (record == nullptr) return 0;
  std::optional<std::uint64_t>& series = state(lane).series;
  if (!series) series = record->number_of({meeting_.world_ranks(), name_of(lane)});
  const std::size_t place = record->begin(*series, number, call);
  record->end(place);  // the rank goes on
  return place;
}

Notice& PostedCollectives::notice(int rank, Lane lane, std::uint64_t number) const {
  return meeting_.memory().slot(rank).notices[static_cast<std::size_t>(lane)][place_of(number)];
}

template <class Condition>
void PostedCollectives::wait_for_peers(Lane lane, std::uint64_t number, const char* what,
                                       const Condition& is_so) {
  int late = rank_;
  const auto all_are = [&] {
    for (int r = 0; r < meeting_.size(); ++r) {
      if (r == rank_ || is_so(notice(r, lane, number))) continue;
      late = r;
      return false;
    }
    return true;
  };
  meeting_.wait_until(all_are, timeout_, [&] { return late; }, what);
}

std::shared_ptr<PostedCollectives::Posting> PostedCollectives::post(Lane lane,
                                                                    const CollectiveSignature& call,
                                                                    Part part,
                                                                    std::chrono::milliseconds timeout,
                                                                    std::shared_ptr<void> keeps_alive) {
  timeout_ = timeout;
  if (call.place())
    part.words = [words = std::move(part.words), place = call.place()] {
      return words() + CollectiveSignature::text_of(place);
    };
  LaneState& calls = state(lane);
  const std::uint64_t number = calls.next;
  Place& place = calls.places[place_of(number)];
  if (const auto occupant = place.posting.lock()) occupant->finish();
  if (number > kNoticePlaces) {
    wait_for_peers(lane, number, "taken what it was shown before",
                   [&](const Notice& theirs) { return theirs.taken.load() >= number - kNoticePlaces; });
  }
  ++calls.next;
  Notice& mine = notice(rank_, lane, number);
  const bool is_larger = part.bytes > place.room || place.rooms.empty();
  if (is_larger) make_room(place, mine, part.bytes);
  part.fill(static_cast<char*>(place.mine->data()));
  mine.hash = call.hash();
  mine.hash.add(number);
  mine.subject = call.subject();
  const bool may_show = lane == Lane::reduce && replicas_ != nullptr;
  if (may_show) mine.replica = replicas_->sample();
  mine.number.store(number);
  meeting_.ring_bell();
  auto posting = std::make_shared<Posting>(*this, std::move(keeps_alive), lane, number);
  posting->shows_replica_ = may_show && mine.replica.id != 0;
  posting->place_in_record_ = keep(lane, number, call);
  if (is_larger) map_peer_segments(lane, number, part.words);
  posting->take_ = std::move(part.take);
  posting->words_ = std::move(part.words);
  place.posting = posting;
  return posting;
}

void PostedCollectives::make_room(Place& place, Notice& mine, std::size_t bytes) {
  place.room = std::max((bytes + kRoomStep - 1) / kRoomStep, std::size_t{1}) * kRoomStep;
  place.rooms.clear();
  place.mine = Segment::make(place.room);
  const std::string address = place.mine->address();
  TORCH_INTERNAL_ASSERT(address.size() < sizeof(mine.address));
  mine.address[address.copy(mine.address, address.size())] = '\0';
}

// Ranks that agree on the call need more room for the same one.
void PostedCollectives::map_peer_segments(Lane lane, std::uint64_t number,
                                          const std::function<std::string()>& words) {
  agree(lane, number, words);
  Place& place = state(lane).places[place_of(number)];
  std::vector<std::shared_ptr<Segment>> rooms;
  for (int r = 0; r < meeting_.size(); ++r)
    rooms.push_back(r == rank_ ? place.mine : Segment::open(notice(r, lane, number).address));
  notice(rank_, lane, number).opened.store(number);
  meeting_.ring_bell();
  wait_for_peers(lane, number, "opened the memory that it is shown",
                 [&](const Notice& theirs) { return theirs.opened.load() >= number; });
  place.mine->close_door();
  place.rooms = std::move(rooms);
}

void PostedCollectives::agree(Lane lane, std::uint64_t number, const std::function<std::string()>& words) {
  const auto has_come = [&](const Notice& theirs) { return theirs.number.load() >= number; };
  wait_for_peers(lane, number, "come to it", has_come);
  const CallHash& expected = notice(0, lane, number).hash;
  CommonSubject subject;
  bool is_equal = true;
  for (int r = 0; r < meeting_.size(); ++r) {
    const Notice& theirs = notice(r, lane, number);
    is_equal = is_equal && theirs.hash == expected && subject.add(theirs.subject);
  }
  if (is_equal) return;
  Notice& mine = notice(rank_, lane, number);
  const std::string text = words();
  mine.words[text.copy(mine.words, sizeof(mine.words) - 1)] = '\0';
  mine.has_words.store(number);
  meeting_.ring_bell();
  // A rank that passes over the call says nothing of it.
  wait_for_peers(lane, number, "told what it called", [&](const Notice& theirs) {
    return theirs.has_words.load() >= number || theirs.taken.load() >= number;
  });
  std::vector<RankCall> calls;
  for (int r = 0; r < meeting_.size(); ++r) {
    const Notice& theirs = notice(r, lane, number);
    const bool has_words = theirs.has_words.load() >= number;
    calls.push_back(
        {meeting_.world_rank(r), number, has_words ? theirs.words : "another one, which it gave up"});
  }
  meeting_.disagreement(table_of(calls));
}

void PostedCollectives::compare_replicas(Lane lane, std::uint64_t number) {
  if (lane != Lane::reduce || replicas_ == nullptr) return;
  std::vector<ReplicaSample> shown;
  for (int r = 0; r < meeting_.size(); ++r) shown.push_back(notice(r, lane, number).replica);
  if (const auto name = replicas_->compare(shown))
    meeting_.replicas_differ(*name, shown, meeting_.world_ranks());
}

void PostedCollectives::mark_taken(Lane lane, std::uint64_t number) {
  notice(rank_, lane, number).taken.store(number);
  meeting_.ring_bell();
}

}  // namespace meshtorch::internal
