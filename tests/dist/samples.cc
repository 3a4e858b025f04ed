// Reads the table of samples and finds those of an operator.
#include "samples.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace meshtorch::testing {
namespace {

struct Table {
  std::vector<Call> calls;
  std::multimap<std::string, std::size_t> of_packet;  // by the name without overload
  std::map<std::string, std::string> reasons;         // not to draw
  std::set<std::string> never;                        // not even samples
};

// "mm bmm: f[5,4], f[4,6]" is a call of each operator; "! name: reason" one that is not drawn, and "!! name:
// reason" one that is not called either.
void read_line(const std::string& line, Table& table) {
  const std::size_t colon = line.find(':');
  if (colon == std::string::npos) throw std::invalid_argument("expected operators: arguments in: " + line);
  const std::size_t marks = line.find_first_not_of('!');
  const bool is_reason = marks > 0;
  std::istringstream names(line.substr(marks, colon - marks));
  for (std::string name; names >> name;) {
    if (is_reason) {
      table.reasons[name] = line.substr(colon + 2);
      if (marks == 2) table.never.insert(name);
      continue;
    }
    if (is_of_another_version(name)) continue;
    table.of_packet.emplace(name.substr(0, name.find('.')), table.calls.size());
    table.calls.push_back(Call::parse(name + line.substr(colon)));
  }
}

const Table& table() {
  static const Table read = [] {
    Table all;
    std::ifstream file(MESHTORCH_SAMPLES);
    if (!file) throw std::runtime_error(std::string("cannot read ") + MESHTORCH_SAMPLES);
    for (std::string line; std::getline(file, line);) {
      if (!line.empty() && line[0] != '#') read_line(line, all);
    }
    return all;
  }();
  return read;
}

// The name without overload and without the mark of an in-place operator.
std::string functional_packet(const c10::OperatorHandle& op) {
  std::string name = name_of({op.operator_name().name, ""});
  const bool is_in_place = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  return is_in_place ? name.substr(0, name.size() - 1) : name;
}

bool is_out(const c10::Argument& argument) {
  return is_written(argument) && (argument.is_out() || argument.kwarg_only());
}

std::vector<torch::Tensor> results_of(const Call& call) {
  torch::jit::Stack stack = call.stack(call.tensors());
  call.op.callBoxed(&stack);
  std::vector<torch::Tensor> all;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) all.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const torch::Tensor& t : value.toTensorVector()) all.push_back(t);
    }
  }
  return all;
}

Value to_write(const torch::Tensor& like) {
  Value value;
  value.kind = Value::Kind::tensor;
  value.tensor = TensorText::like(like);
  return value;
}

// The out= arguments of `call`, made like these results.
bool fill_outs(Call& call, const std::vector<torch::Tensor>& results) {
  std::size_t next = 0;
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_out(arguments[i])) continue;
    if (arguments[i].type()->kind() == c10::TypeKind::ListType) {
      call.arguments[i].kind = Value::Kind::list;
      for (; next < results.size(); ++next) call.arguments[i].items.push_back(to_write(results[next]));
    } else if (next < results.size() && results[next].defined()) {
      call.arguments[i] = to_write(results[next++]);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

bool is_of_another_version(const std::string& name) {
  if (operator_named(name)) return false;
  static const std::set<std::string> recorded = [] {
    std::set<std::string> all;
    for (const auto& record : std::filesystem::directory_iterator(MESHTORCH_ATEN_RECORDS)) {
      std::ifstream file(record.path());
      for (std::string line; std::getline(file, line);) all.insert(line.substr(0, line.find(':')));
    }
    return all;
  }();
  return recorded.contains(name);
}

const std::vector<Call>& all_samples() { return table().calls; }

std::vector<Call> samples_of(const c10::OperatorHandle& op) {
  std::vector<Call> found;
  if (table().never.contains(name_of(op.operator_name()))) return found;
  const auto [begin, end] = table().of_packet.equal_range(functional_packet(op));
  for (auto entry = begin; entry != end; ++entry) {
    const Call& sample = table().calls[entry->second];
    if (sample.name() == name_of(op.operator_name())) {
      found.push_back(sample);
    } else if (auto variant = as_variant(sample, op)) {
      found.push_back(std::move(*variant));
    }
  }
  return found;
}

std::optional<Call> as_variant(const Call& sample, const c10::OperatorHandle& variant) {
  const auto& from = sample.op.schema().arguments();
  const auto& to = variant.schema().arguments();
  const bool writes = std::any_of(to.begin(), to.end(), is_written);
  if (!writes || std::any_of(from.begin(), from.end(), is_written)) return std::nullopt;
  Call call(variant);
  std::size_t next = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (is_out(to[i])) continue;
    if (next == from.size() || from[next].name() != to[i].name() || *from[next].type() != *to[i].type())
      return std::nullopt;
    call.arguments[i] = sample.arguments[next++];
  }
  if (next != from.size()) return std::nullopt;
  try {
    if (!fill_outs(call, results_of(sample))) return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return call;
}

std::string reason_not_to_draw(const std::string& name) {
  const auto found = table().reasons.find(name);
  return found == table().reasons.end() ? "" : found->second;
}

}  // namespace meshtorch::testing
