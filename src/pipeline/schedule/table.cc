// Actions and tables as text: the CSV format of torch.distributed.pipelining.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>

#include "meshtorch/pipeline_schedule.h"
#include "pipeline/schedule/table_errors.h"

namespace meshtorch {
using namespace internal;
namespace {

using Kind = PipelineAction::Kind;

struct KindName {
  Kind kind;
  std::string_view name;
  bool has_microbatch = true;
};

constexpr std::array<KindName, 11> kKindNames{{{Kind::forward, "F"},
                                               {Kind::backward, "B"},
                                               {Kind::backward_input, "I"},
                                               {Kind::backward_weight, "W"},
                                               {Kind::send_forward, "SEND_F"},
                                               {Kind::receive_forward, "RECV_F"},
                                               {Kind::send_backward, "SEND_B"},
                                               {Kind::receive_backward, "RECV_B"},
                                               {Kind::unshard, "UNSHARD", false},
                                               {Kind::reshard, "RESHARD", false},
                                               {Kind::reduce_gradients, "REDUCE_GRAD", false}}};

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::string_view kBlanks = " \t\r\"";  // spreadsheets put entries in quotes

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Takes the number at the front of `text` away.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<PipelineAction> parse_action(std::string_view text) {
  text = trimmed(text);
  const std::optional<int> stage = take_number(text);
  if (!stage) return std::nullopt;
  const std::string_view name = text.substr(0, text.find_first_of("0123456789"));
  const auto* const kind =
      std::ranges::find_if(kKindNames, [&](const KindName& known) { return known.name == name; });
  if (kind == kKindNames.end()) return std::nullopt;
  text.remove_prefix(name.size());
  PipelineAction action{.kind = kind->kind, .stage = *stage};
  if (kind->has_microbatch) {
    const std::optional<int> microbatch = take_number(text);
    if (!microbatch) return std::nullopt;
    action.microbatch = *microbatch;
  }
  return text.empty() ? std::optional(action) : std::nullopt;
}

// "(0F1;3B0)OVERLAP_F_B": a forward and the backward that may run at the same time.
bool add_overlapped(std::string_view text, std::vector<PipelineAction>& row) {
  const std::size_t close = text.find(')');
  if (close == std::string_view::npos || text.substr(close + 1) != kOverlap) return false;
  const std::vector<std::string_view> parts = split(text.substr(1, close - 1), ';');
  if (parts.size() != 2) return false;
  std::optional<PipelineAction> first = parse_action(parts[0]);
  const std::optional<PipelineAction> second = parse_action(parts[1]);
  if (!first || !second || first->kind != Kind::forward || second->kind != Kind::backward) return false;
  first->overlaps_next = true;
  row.insert(row.end(), {*first, *second});
  return true;
}

bool add_entry(std::string_view text, std::vector<PipelineAction>& row) {
  text = trimmed(text);
  if (text.starts_with('(')) return add_overlapped(text, row);
  if (text.empty()) {
    row.emplace_back();
    return true;
  }
  const std::optional<PipelineAction> action = parse_action(text);
  if (action) row.push_back(*action);
  return action.has_value();
}

}  // namespace

std::string PipelineAction::to_string() const {
  if (kind == Kind::idle) return {};
  const auto* const known =
      std::ranges::find_if(kKindNames, [&](const KindName& name) { return name.kind == kind; });
  std::string text = std::to_string(stage).append(known->name);
  return known->has_microbatch ? text.append(std::to_string(microbatch)) : text;
}

std::string PipelineTable::to_csv() const {
  std::string text;
  for (const std::vector<PipelineAction>& row : rows) {
    bool is_overlapped = false;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text.append(is_overlapped ? ";" : ",");
      const bool overlaps = row[i].overlaps_next && i + 1 < row.size();
      if (overlaps) text.append("(");
      text.append(row[i].to_string());
      if (is_overlapped) text.append(")").append(kOverlap);
      is_overlapped = overlaps;
    }
    text.append("\n");
  }
  return text;
}

PipelineTable PipelineTable::from_csv(std::string_view text) {
  PipelineTable table;
  if (text.ends_with('\n')) text.remove_suffix(1);
  for (const std::string_view line : split(text, '\n')) {
    std::vector<PipelineAction>& row = table.rows.emplace_back();
    if (trimmed(line).empty()) continue;
    const std::vector<std::string_view> entries = split(line, ',');
    for (std::size_t column = 0; column < entries.size(); ++column) {
      if (add_entry(entries[column], row)) continue;
      throw std::invalid_argument(
          "meshtorch: \"" + std::string(trimmed(entries[column])) + "\" is no action of a pipeline" +
          place_text(table.rows.size() - 1, column) +
          "\n  do: write stage, action and micro-batch, as 2F0; the actions are F, B, I, W, SEND_F, RECV_F, "
          "SEND_B, RECV_B, and without micro-batch UNSHARD, RESHARD, REDUCE_GRAD");
    }
  }
  return table;
}

}  // namespace meshtorch
