// Plans in words and in files.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include "core/shallow_json.h"
#include "meshtorch/parallelize.h"

namespace meshtorch {
using namespace internal;
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const std::optional<Placement>& layout) { return layout ? layout->to_string() : "none"; }

// Options that are left at their defaults are neither printed nor written.
bool is_given(const ParallelStyle::Attribute& attribute) {
  if (const auto* layouts = std::get_if<Layouts>(&attribute)) return layouts->is_given();
  if (const auto* named = std::get_if<NamedLayouts>(&attribute)) return !named->empty();
  return true;
}

std::string text_of(const ParallelStyle::Attribute& attribute) {
  if (const auto* flag = std::get_if<bool>(&attribute)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<std::int64_t>(&attribute)) return std::to_string(*number);
  std::string text;
  if (const auto* layouts = std::get_if<Layouts>(&attribute)) {
    for (std::size_t i = 0; i < layouts->size(); ++i) text += (i > 0 ? ", " : "") + text_of((*layouts)[i]);
    return layouts->size() == 1 ? text : "(" + text + ")";
  }
  for (const auto& [name, layout] : std::get<NamedLayouts>(attribute))
    text += (text.empty() ? "" : ", ") + name + ": " + layout.to_string();
  return "{" + text + "}";
}

// "S(0)", "R", "P(sum)": what Placement::to_string writes.
Placement parse_placement(const std::string& text) {
  const auto argument = [&](std::size_t begin) { return text.substr(begin, text.size() - begin - 1); };
  try {
    if (text == "R") return Replicate();
    if (text.starts_with("S(") && text.ends_with(")")) return Shard(std::stoll(argument(2)));
    if (text.starts_with("P(") && text.ends_with(")")) return Partial(argument(2));
  } catch (const std::exception&) {  // reported below
  }
  TORCH_CHECK_VALUE(false, "meshtorch: ", in_quotes(text),
                    " is no placement\n  do: write \"R\", \"S(dim)\" or \"P(sum)\"");
}

Json json_of(const std::optional<Placement>& layout) {
  return layout ? Json(layout->to_string()) : Json(nullptr);
}

Json json_of(const ParallelStyle::Attribute& attribute) {
  if (const auto* flag = std::get_if<bool>(&attribute)) return *flag;
  if (const auto* number = std::get_if<std::int64_t>(&attribute)) return *number;
  if (const auto* layouts = std::get_if<Layouts>(&attribute)) {
    if (layouts->size() == 1 && (*layouts)[0]) return json_of((*layouts)[0]);
    Json list = Json::array();
    for (std::size_t i = 0; i < layouts->size(); ++i) list.push_back(json_of((*layouts)[i]));
    return list;
  }
  Json named = Json::object();
  for (const auto& [name, layout] : std::get<NamedLayouts>(attribute)) named[name] = layout.to_string();
  return named;
}

// One style of a plan in a file. What is not there is as by default.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  void read(const char* key, bool& flag) const { flag = object_.value(key, flag); }
  void read(const char* key, std::int64_t& number) const {
    if (has(key)) number = whole_number<std::int64_t>(object_.at(key));
  }
  void read(const char* key, std::optional<Placement>& layout) const {
    if (has(key)) layout = parse_placement(object_.at(key).get<std::string>());
  }
  void read(const char* key, Layouts& layouts) const {
    if (!has(key)) return;
    const Json& value = object_.at(key);
    if (value.is_string()) {
      layouts = parse_placement(value.get<std::string>());
      return;
    }
    std::vector<std::optional<Placement>> list;
    for (const Json& item : value)
      list.push_back(item.is_null() ? std::nullopt : std::optional(parse_placement(item.get<std::string>())));
    layouts = Layouts(std::move(list));
  }
  void read(const char* key, NamedLayouts& layouts) const {
    if (!has(key)) return;
    for (const auto& item : object_.at(key).items())
      layouts[item.key()] = parse_placement(item.value().get<std::string>());
  }

 private:
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  const Json& object_;
};

template <class Options>
Options edge_options(const Reader& reader) {
  Options options;
  reader.read("input_layouts", options.input_layouts);
  reader.read("output_layouts", options.output_layouts);
  reader.read("use_local_output", options.use_local_output);
  return options;
}

template <class Options>
void read_inputs(const Reader& reader, Options& options) {
  reader.read("input_layouts", options.input_layouts);
  reader.read("desired_input_layouts", options.desired_input_layouts);
  reader.read("input_kwarg_layouts", options.input_kwarg_layouts);
  reader.read("desired_input_kwarg_layouts", options.desired_input_kwarg_layouts);
}

template <class Options>
void read_outputs(const Reader& reader, Options& options) {
  reader.read("output_layouts", options.output_layouts);
  reader.read("desired_output_layouts", options.desired_output_layouts);
  reader.read("use_local_output", options.use_local_output);
}

Style read_style(const std::string& name, const Reader& reader) {
  if (name == "ColwiseParallel") return ColwiseParallel(edge_options<ColwiseOptions>(reader));
  if (name == "RowwiseParallel") return RowwiseParallel(edge_options<RowwiseOptions>(reader));
  if (name == "SequenceParallel") {
    SequenceOptions options;
    reader.read("sequence_dim", options.sequence_dim);
    reader.read("use_local_output", options.use_local_output);
    return SequenceParallel(options);
  }
  if (name == "NoParallel") {
    NoParallelOptions options;
    reader.read("input_layout", options.input_layout);
    reader.read("output_layout", options.output_layout);
    reader.read("use_local_output", options.use_local_output);
    return NoParallel(options);
  }
  if (name == "PrepareModuleInput") {
    PrepareInputOptions options;
    read_inputs(reader, options);
    reader.read("use_local_output", options.use_local_output);
    return PrepareModuleInput(options);
  }
  if (name == "PrepareModuleOutput") {
    PrepareOutputOptions options;
    read_outputs(reader, options);
    return PrepareModuleOutput(options);
  }
  if (name == "PrepareModuleInputOutput") {
    PrepareInputOutputOptions options;
    read_inputs(reader, options);
    reader.read("use_local_input", options.use_local_input);
    read_outputs(reader, options);
    return PrepareModuleInputOutput(options);
  }
  const std::string shown = in_quotes(name);
  TORCH_CHECK_VALUE(false, "meshtorch: the plan names a style that is not known\n  style: ",
                    shown.substr(1, shown.size() - 2),
                    "\n  do: use ColwiseParallel, RowwiseParallel, SequenceParallel, NoParallel, "
                    "PrepareModuleInput, PrepareModuleOutput or "
                    "PrepareModuleInputOutput; add your own styles in C++");
}

}  // namespace

std::string ParallelStyle::to_string() const {
  std::string text;
  for (const auto& [key, value] : attributes()) {
    if (is_given(value)) text += (text.empty() ? "" : ", ") + key + "=" + text_of(value);
  }
  return name() + "(" + text + ")";
}

std::string ParallelizePlan::to_json() const {
  Json list = Json::array();
  for (const auto& [pattern, style] : entries_) {
    Json entry{{"modules", pattern}, {"style", style->name()}};
    for (const auto& [key, value] : style->attributes()) {
      if (is_given(value)) entry[key] = json_of(value);
    }
    read_style(style->name(), Reader(entry));  // a style that cannot be read is not written
    list.push_back(std::move(entry));
  }
  return list.dump(2);
}

ParallelizePlan ParallelizePlan::from_json(const std::string& text) {
  std::vector<Entry> entries;
  try {
    for (const Json& entry : parse_shallow_json<Json>(text)) {
      entries.emplace_back(entry.at("modules").get<std::string>(),
                           read_style(entry.at("style").get<std::string>(), Reader(entry)));
    }
  } catch (const c10::Error&) {  // has its three parts already
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(
        false, "meshtorch: the plan cannot be read\n  ", error.what(),
        "\n  do: write a list of {\"modules\": pattern, \"style\": name, options…}, as to_json does");
  }
  return ParallelizePlan(std::move(entries));
}

}  // namespace meshtorch
