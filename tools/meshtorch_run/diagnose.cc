// Compares the ranks' last collectives, group by group, to the first at which they part.
#include "diagnose.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "core/shallow_json.h"
#include "report.h"

namespace meshtorch::run {
namespace {

using nlohmann::json;
// Calls with numbers of their own: the members of a group, and the lane in which they post, empty if they
// meet.
struct Series {
  std::vector<int> members;
  std::string lane;
  auto operator<=>(const Series&) const = default;
};

struct Call {
  std::uint64_t number = 0;
  std::uint64_t agreed = 0;  // equal on all ranks that made equal calls
  std::string text;
  double began = 0;
  std::optional<double> ended;
};

struct Record {
  int world_size = 0;
  std::string reason;
  std::map<Series, std::vector<Call>> calls;  // in order
};

// "all_reduce(Float[2, 3], sum) for aten::mm"
std::string text_of(const json& call) {
  std::string text = call.at("collective").get<std::string>() + "(";
  if (call.contains("type")) text += call["type"].get<std::string>() + call.at("shape").dump();
  if (call.contains("reduction")) text += ", " + call["reduction"].get<std::string>();
  text += ")";
  if (call.contains("for")) text += " for " + call["for"].get<std::string>();
  return text;
}

// A rank or a number of ranks. Those that left no record are listed, so there is an end to it.
int rank_from(const json& value) {
  constexpr int kMostRanks = 1 << 20;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMostRanks)
    throw std::invalid_argument("it counts ranks up to " + value.dump());
  return value.get<int>();
}

Record read_record(const std::filesystem::path& path, int& rank) {
  try {
    std::ifstream in(path);
    const json all = internal::parse_shallow_json(
        std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
    Record record{rank_from(all.at("world_size")), all.at("reason").get<std::string>(), {}};
    rank = rank_from(all.at("rank"));
    for (const json& call : all.at("calls")) {
      Call made{internal::whole_number<std::uint64_t>(call.at("number")),
                internal::whole_number<std::uint64_t>(call.at("agreed")), text_of(call),
                call.at("began").get<double>(), std::nullopt};
      if (call.contains("ended")) made.ended = call["ended"].get<double>();
      Series series{{}, call.value("lane", "")};
      for (const json& member : call.at("group")) series.members.push_back(rank_from(member));
      if (series.members.empty()) throw std::invalid_argument("a call of a group without members");
      record.calls[series].push_back(std::move(made));
    }
    return record;
  } catch (const std::exception& error) {
    throw std::runtime_error("a flight record cannot be read.\n  " + path.string() + ": " + error.what() +
                             "\n  do: give a directory with records that meshtorch wrote");
  }
}

std::map<int, Record> read_records(const std::string& directory) {
  std::map<int, Record> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank_") || entry.path().extension() != ".json") continue;
    if (!entry.is_regular_file()) continue;  // a pipe would wait for someone to write to it
    int rank = 0;
    Record record = read_record(entry.path(), rank);
    records.insert_or_assign(rank, std::move(record));
  }
  if (records.empty())
    throw std::runtime_error(
        "there is no flight record.\n  directory " + directory +
        "\n  do: run the program with MESHTORCH_FLIGHT_RECORD set to a directory, or with "
        "meshtorch-run --flight-record");
  return records;
}

std::string name_call(const Call& call) { return call.text + ", call #" + std::to_string(call.number); }

std::string name_series(const Series& series, int world_size) {
  const std::string posted = series.lane.empty() ? "" : "what is posted (" + series.lane + ") in ";
  return posted + (static_cast<int>(series.members.size()) == world_size
                       ? "the group of all ranks"
                       : "the group of " + name_ranks(series.members));
}

const Call* find_call(const std::vector<Call>& calls, std::uint64_t number) {
  const auto found =
      std::find_if(calls.rbegin(), calls.rend(), [&](const Call& c) { return c.number == number; });
  return found == calls.rend() ? nullptr : &*found;
}

struct Finding {
  double when = std::numeric_limits<double>::infinity();  // the earliest is the cause of the others
  std::string sentence;
};

class Comparison {
 public:
  explicit Comparison(const std::map<int, Record>& records) : records_(records) {
    for (const auto& [rank, record] : records) {
      world_size_ = std::max({world_size_, record.world_size, rank + 1});
      for (const auto& [series, calls] : record.calls) {
        all_[series];
        world_size_ = std::max(world_size_, *std::ranges::max_element(series.members) + 1);
      }
    }
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!records.contains(rank)) missing_.push_back(rank);
    }
    for (auto& [series, members] : all_) {
      for (const int rank : series.members) {
        const auto record = records.find(rank);
        if (record == records.end()) continue;
        const auto calls = record->second.calls.find(series);
        members.emplace(rank, calls == record->second.calls.end() ? &none_ : &calls->second);
      }
    }
  }

  std::string sentence() const {
    Finding first;
    for (const auto& [series, members] : all_) {
      for (const auto& found : {difference(series, members), absence(series, members)}) {
        if (found && found->when < first.when) first = *found;
      }
    }
    if (!first.sentence.empty()) return first.sentence;
    if (!missing_.empty())
      return name_ranks(missing_) +
             " left no record, and the others wait for nobody: it may have been killed, "
             "or not have been started.";
    return "The ranks made the same calls and none waits for another.";
  }

 private:
  using Members = std::map<int, const std::vector<Call>*>;

  // The first call that ranks with the same number made differently.
  std::optional<Finding> difference(const Series& series, const Members& members) const {
    std::map<std::uint64_t, std::map<int, const Call*>> by_number;
    for (const auto& [rank, calls] : members) {
      for (const Call& call : *calls) by_number[call.number][rank] = &call;
    }
    for (const auto& [number, calls] : by_number) {
      const Call& first = *calls.begin()->second;
      const bool is_one = std::all_of(calls.begin(), calls.end(), [&](const auto& other) {
        return other.second->agreed == first.agreed;
      });
      if (is_one) continue;
      std::map<std::string, std::vector<int>> who;
      for (const auto& [rank, call] : calls) who[call->text].push_back(rank);
      std::string text = "The ranks part at call #" + std::to_string(number) + " of " +
                         name_series(series, world_size_) + ":";
      for (const auto& [what, ranks] : who)
        text += (text.back() == ':' ? " " : ", ") + name_ranks(ranks) + " called " + what;
      if (who.size() == 1) text += ", with other arguments";
      return Finding{first.began, text + "."};
    }
    return std::nullopt;
  }

  // Ranks that are in a call to which others did not come.
  std::optional<Finding> absence(const Series& series, const Members& members) const {
    const Call* latest = nullptr;
    for (const auto& [rank, calls] : members) {
      if (calls->empty() || calls->back().ended) continue;
      if (latest == nullptr || calls->back().number > latest->number) latest = &calls->back();
    }
    if (latest == nullptr) return std::nullopt;
    std::vector<int> waiting, absent, silent;
    for (const int rank : series.members) {
      const auto member = members.find(rank);
      if (member == members.end())
        silent.push_back(rank);
      else
        (find_call(*member->second, latest->number) != nullptr ? waiting : absent).push_back(rank);
    }
    const std::string where = name_call(*latest) + " of " + name_series(series, world_size_);
    if (absent.empty() && silent.empty())
      return Finding{latest->began, "All ranks came to " + where + ", which did not end."};
    std::string text;
    if (!silent.empty()) text = name_ranks(silent) + " left no record and did not come to " + where;
    if (!absent.empty())
      text += (text.empty() ? "" : ", nor did ") + name_ranks(absent) +
              (text.empty() ? " did not come to " + where : "") + last_deed(*members.at(absent[0]));
    return Finding{latest->began,
                   text + "; " + name_ranks(waiting) + (waiting.size() == 1 ? " waits." : " wait.")};
  }

  static std::string last_deed(const std::vector<Call>& calls) {
    return calls.empty() ? ", having called nothing in it" : ", having last done " + name_call(calls.back());
  }

  const std::map<int, Record>& records_;
  int world_size_ = 0;
  std::map<Series, Members> all_;
  std::vector<int> missing_;
  const std::vector<Call> none_;
};

std::string last_of_each(const std::map<int, Record>& records) {
  std::ostringstream text;
  for (const auto& [rank, record] : records) {
    const Call* last = nullptr;
    for (const auto& [series, calls] : record.calls) {
      if (!calls.empty() && (last == nullptr || calls.back().began > last->began)) last = &calls.back();
    }
    text << "\n  rank " << rank << ": ";
    if (last == nullptr)
      text << "called nothing";
    else
      text << (last->ended ? "has left " : "is in ") << name_call(*last);
    text << " (written: " << record.reason.substr(0, record.reason.find('\n')) << ")";
  }
  return text.str();
}

}  // namespace

std::string diagnose(const std::string& directory) {
  const std::map<int, Record> records = read_records(directory);
  std::string sentence = Comparison(records).sentence();
  if (!sentence.empty() && sentence.starts_with("rank")) sentence[0] = 'R';
  return sentence + last_of_each(records) + "\n";
}

}  // namespace meshtorch::run
