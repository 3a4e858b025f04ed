// What one rank calls in a group.
#include "signature/collective_signature.h"

#include <array>
#include <cstdio>

namespace meshtorch::internal {
namespace {

constexpr std::array<const char*, 14> kKindNames{"all_reduce",
                                                 "all_gather",
                                                 "all_gather_into_tensor",
                                                 "reduce_scatter",
                                                 "reduce_scatter_tensor",
                                                 "all_to_all",
                                                 "all_to_all_single",
                                                 "broadcast",
                                                 "reduce",
                                                 "gather",
                                                 "scatter",
                                                 "barrier",
                                                 "send_recv",
                                                 "comparison"};

// Programs call the others from several lines on purpose: the source of a broadcast and those that receive,
// the ranks that come to a barrier before and after.
bool is_called_from_one_line(CallKind kind) {
  switch (kind) {
    case CallKind::all_reduce:
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor:
    case CallKind::all_to_all:
    case CallKind::all_to_all_single:
      return true;
    default:
      return false;
  }
}

// The path of the module that runs on this thread, empty if none does.
std::string module_of_call() {
  const auto ask = running_module.load(std::memory_order_relaxed);
  return ask == nullptr ? "" : ask();
}

}  // namespace

const char* to_string(CallKind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

CollectiveSignature::CollectiveSignature(CallKind kind) : kind_(kind) {
  const auto ask_level = agreement_of_rank.load(std::memory_order_relaxed);
  const Agreement level = ask_level == nullptr ? Agreement::on : ask_level();
  is_in_full_ = level == Agreement::full;
  hash_.add(static_cast<std::uint64_t>(kind));
  if (level >= Agreement::on) add_subject();
  const CallOrigin* origin = CallOrigin::current();
  if (origin != nullptr) hash_.add(origin->name());
  if (!is_in_full_) return;
  while (origin != nullptr && (origin = origin->outer()) != nullptr) hash_.add(origin->name());
  if (const std::string module = module_of_call(); !module.empty()) hash_.add(module);
  // The two sides of a message come from different places.
  if (kind != CallKind::send_recv) place_ = CallPlace::here();
  if (place_) place_->add_to(hash_);
}

void CollectiveSignature::add_subject() {
  if (const TensorOrigin* moved = MovedTensor::current()) {
    moved_ = *moved;
    subject_ = moved_.id;
  }
  const SourceLine* line = CalledFrom::current();
  if (line == nullptr || line->line == 0 || !is_called_from_one_line(kind_)) return;
  line_ = *line;
  hash_.add(line_.file_name());
  hash_.add(line_.line);
}

std::string CollectiveSignature::description() const {
  std::string text = std::string(to_string(kind_)) + "(" + arguments() + ")";
  if (moved_.maker != nullptr) {
    std::array<char, 32> id;
    std::snprintf(id.data(), id.size(), " (%06x)", static_cast<unsigned>(moved_.id & 0xFFFFFF));
    text.append(" of what ").append(moved_.maker).append(" made").append(id.data());
  }
  const CallOrigin* origin = CallOrigin::current();
  if (origin != nullptr) text.append(" for ").append(origin->name());
  if (!is_in_full_) return line_.line == 0 ? text : text + " at " + line_.text();
  while (origin != nullptr && (origin = origin->outer()) != nullptr)
    text.append(" in ").append(origin->name());
  if (const std::string module = module_of_call(); !module.empty()) text.append(" of module ").append(module);
  return text;
}

std::string CollectiveSignature::text_of(const std::shared_ptr<const CallPlace>& place) {
  return place ? " at " + place->text() : std::string();
}

UncommunicatedCall::UncommunicatedCall(std::string text)
    : CollectiveSignature(CallKind::comparison), text_(std::move(text)) {
  hash_.add(text_);
}

}  // namespace meshtorch::internal
