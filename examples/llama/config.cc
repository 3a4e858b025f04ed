// Reading and writing config.json: old and new names of its fields, and errors that name the field.
#include "config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace llama {
namespace {

using nlohmann::json;

// One JSON object, whose errors say where it stands.
class Fields {
 public:
  Fields(const json& object, std::string source) : object_(object), source_(std::move(source)) {
    TORCH_CHECK_VALUE(object_.is_object(), "meshtorch-llama: a configuration has to be an object, this is ",
                      object_.type_name(), "\n  in: ", source_, "\n  do: give a config.json of transformers");
  }

  bool has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  const json& operator[](const char* name) const { return object_.at(name); }

  // The field, or `otherwise` where it is missing or null.
  template <class T>
  T get(const char* name, T otherwise) const {
    return has(name) ? read<T>(name) : otherwise;
  }
  template <class T>
  T required(const char* name) const {
    TORCH_CHECK_VALUE(has(name), "meshtorch-llama: the field \"", name, "\" is missing\n  in: ", source_,
                      "\n  do: use the config.json that belongs to the model");
    return read<T>(name);
  }
  std::int64_t positive(const char* name, std::int64_t otherwise,
                        std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    const auto value = otherwise > 0 ? get<std::int64_t>(name, otherwise) : required<std::int64_t>(name);
    TORCH_CHECK_VALUE(value > 0, "meshtorch-llama: \"", name, "\" has to be positive, it is ", value,
                      "\n  in: ", source_, "\n  do: use the config.json that belongs to the model");
    TORCH_CHECK_VALUE(value <= most, "meshtorch-llama: \"", name, "\" is ", value,
                      ", and no model has more than ", most, "\n  in: ", source_,
                      "\n  do: use the config.json that belongs to the model");
    return value;
  }

 private:
  template <class T>
  T read(const char* name) const {
    const json& value = object_.at(name);
    bool fits = false;
    if constexpr (std::is_same_v<T, bool>) {
      fits = value.is_boolean();
    } else if constexpr (std::is_integral_v<T>) {
      fits = value.is_number_integer();
    } else if constexpr (std::is_floating_point_v<T>) {
      fits = value.is_number();
    } else {
      fits = value.is_string();
    }
    TORCH_CHECK_VALUE(fits, "meshtorch-llama: \"", name, "\" cannot be ", value.dump(), "\n  in: ", source_,
                      "\n  do: use the config.json that belongs to the model");
    if constexpr (std::is_same_v<T, std::int64_t>) {
      TORCH_CHECK_VALUE(!value.is_number_unsigned() || value.get<std::uint64_t>() <= kLargest,
                        "meshtorch-llama: \"", name, "\" is ", value.dump(),
                        ", beyond all numbers\n  in: ", source_,
                        "\n  do: use the config.json that belongs to the model");
    }
    return value.get<T>();
  }

  static constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const json& object_;
  std::string source_;
};

void check_architecture(const Fields& fields, const std::string& source) {
  std::vector<std::string> names;
  if (fields.has("architectures") && fields["architectures"].is_array()) {
    for (const json& name : fields["architectures"])
      names.push_back(name.is_string() ? name.get<std::string>() : "");
  }
  const auto type = fields.get<std::string>("model_type", names.empty() ? "" : "llama");
  const bool is_llama = type == "llama" && (names.empty() || std::find(names.begin(), names.end(),
                                                                       "LlamaForCausalLM") != names.end());
  TORCH_CHECK_NOT_IMPLEMENTED(is_llama, "meshtorch-llama: unknown architecture: model_type \"", type,
                              "\", architectures [", c10::Join(", ", names), "]\n  in: ", source,
                              "\n  do: give a model of model_type \"llama\" with LlamaForCausalLM");
  const auto act = fields.get<std::string>("hidden_act", "silu");
  TORCH_CHECK_NOT_IMPLEMENTED(act == "silu" || act == "swish", "meshtorch-llama: hidden_act \"", act,
                              "\" is not known, \"silu\" is\n  in: ", source,
                              "\n  do: give a model with SwiGLU");
}

// transformers kept theta beside rope_scaling, which said "type" and later "rope_type"; now rope_parameters
// holds all.
RopeConfig read_rope(const Fields& fields, const std::string& source) {
  const std::string where = source + (fields.has("rope_parameters") ? ", rope_parameters" : ", rope_scaling");
  const json nothing = json::object();
  const Fields rope(fields.has("rope_parameters") ? fields["rope_parameters"]
                    : fields.has("rope_scaling")  ? fields["rope_scaling"]
                                                  : nothing,
                    where);
  RopeConfig read;
  read.type = rope.get<std::string>("rope_type", rope.get<std::string>("type", "default"));
  read.theta = rope.get<double>("rope_theta", fields.get<double>("rope_theta", 10000));
  TORCH_CHECK_NOT_IMPLEMENTED(
      read.type == "default" || read.type == "linear" || read.type == "dynamic" || read.type == "llama3",
      "meshtorch-llama: rope type \"", read.type,
      "\" is not known; default, linear, dynamic and llama3 are\n  in: ", where,
      "\n  do: give a model with one of these");
  const auto rotated =
      rope.get<double>("partial_rotary_factor", fields.get<double>("partial_rotary_factor", 1));
  TORCH_CHECK_NOT_IMPLEMENTED(rotated == 1, "meshtorch-llama: partial_rotary_factor ", rotated,
                              " is not known, 1 is\n  in: ", where,
                              "\n  do: give a model that rotates whole heads");
  read.original_max_positions = rope.get<std::int64_t>("original_max_position_embeddings", 0);
  if (read.type == "default") return read;
  read.factor = rope.required<double>("factor");
  if (read.type == "llama3") {
    read.low_freq_factor = rope.required<double>("low_freq_factor");
    read.high_freq_factor = rope.required<double>("high_freq_factor");
    read.original_max_positions = rope.positive("original_max_position_embeddings", 0);
  }
  return read;
}

// One id, several, or none.
std::vector<std::int64_t> read_eos(const Fields& fields, const std::string& source) {
  std::vector<std::int64_t> ids;
  if (!fields.has("eos_token_id")) return ids;
  const json& eos = fields["eos_token_id"];
  for (const json& id : eos.is_array() ? eos : json::array({eos})) {
    const bool fits = id.is_number_integer() && (!id.is_number_unsigned() || id.get<std::int64_t>() >= 0);
    TORCH_CHECK_VALUE(fits, "meshtorch-llama: \"eos_token_id\" cannot be ", eos.dump(), "\n  in: ", source,
                      "\n  do: give an integer or a list of them");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

json parse(const std::string& text, const std::string& source) {
  constexpr int kMaxDepth = 64;  // what walks through it uses the stack
  try {
    return json::parse(text, [](int depth, json::parse_event_t, const json&) {
      if (depth > kMaxDepth) throw std::invalid_argument("nested deeper than 64 levels");
      return true;
    });
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "meshtorch-llama: this is not JSON: ", error.what(), "\n  in: ", source,
                      "\n  do: fetch the file again");
  }
}

std::string contents_of(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMaxBytes = 10'000'000;
  // Opening a pipe would wait for someone to write to it.
  std::ifstream file;
  if (std::filesystem::is_regular_file(path)) file.open(path);
  TORCH_CHECK_VALUE(file.is_open(), "meshtorch-llama: cannot read the configuration\n  in: ", path.string(),
                    "\n  do: give a model's directory, or its config.json");
  TORCH_CHECK_VALUE(std::filesystem::file_size(path) <= kMaxBytes, "meshtorch-llama: a configuration of ",
                    std::filesystem::file_size(path), " bytes is none\n  in: ", path.string(),
                    "\n  do: give a model's directory, or its config.json");
  return (std::ostringstream() << file.rdbuf()).str();
}

}  // namespace

Config Config::from_json(const std::string& text, const std::string& source) {
  const json object = parse(text, source);
  const Fields fields(object, source);
  check_architecture(fields, source);
  Config c;
  c.vocab_size = fields.positive("vocab_size", 0, kMaxVocabulary);
  c.hidden_size = fields.positive("hidden_size", 0, kMaxWidth);
  c.intermediate_size = fields.positive("intermediate_size", 0, kMaxWidth);
  c.num_layers = fields.positive("num_hidden_layers", 0, kMaxLayers);
  c.num_heads = fields.positive("num_attention_heads", 0, kMaxWidth);
  c.num_kv_heads = fields.positive("num_key_value_heads", c.num_heads, kMaxWidth);
  c.head_dim = fields.has("head_dim") ? fields.positive("head_dim", 0, kMaxWidth / c.num_heads) : 0;
  c.max_positions = fields.positive("max_position_embeddings", 2048, kMaxPositions);
  c.rms_norm_eps = fields.get<double>("rms_norm_eps", 1e-6);
  c.attention_bias = fields.get<bool>("attention_bias", false);
  c.mlp_bias = fields.get<bool>("mlp_bias", false);
  c.tie_word_embeddings = fields.get<bool>("tie_word_embeddings", false);
  c.rope = read_rope(fields, source);
  c.initializer_range = fields.get<double>("initializer_range", 0.02);
  c.dtype = fields.get<std::string>("dtype", fields.get<std::string>("torch_dtype", "float32"));
  c.eos_token_ids = read_eos(fields, source);
  c.settle_heads({.source = source});
  return c;
}

void Config::settle_heads(const HeadErrors& errors) {
  TORCH_CHECK_VALUE(num_heads % num_kv_heads == 0, "meshtorch-llama: ", num_heads,
                    " attention heads cannot share ", num_kv_heads,
                    " heads of keys and values\n  in: ", errors.source,
                    "\n  do: ", errors.multiple_of_kv_heads);
  if (head_dim == 0) {
    TORCH_CHECK_VALUE(hidden_size % num_heads == 0, "meshtorch-llama: a width of ", hidden_size,
                      " cannot be cut into ", num_heads, " heads\n  in: ", errors.source,
                      "\n  do: ", errors.multiple_of_heads);
    head_dim = hidden_size / num_heads;
  }
  TORCH_CHECK_VALUE(head_dim % 2 == 0, "meshtorch-llama: a head of odd size ", head_dim,
                    " cannot be rotated\n  in: ", errors.source, "\n  do: ", errors.even_heads);
}

Config Config::from_path(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return from_json(contents_of(path), path.string());
  Config config = from_json(contents_of(path / "config.json"), (path / "config.json").string());
  const std::filesystem::path generation = path / "generation_config.json";
  if (!std::filesystem::exists(generation)) return config;
  const json object = parse(contents_of(generation), generation.string());
  for (const std::int64_t id : read_eos(Fields(object, generation.string()), generation.string())) {
    auto& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return config;
}

std::string Config::to_json() const {
  json rope_parameters = {{"rope_type", rope.type}, {"rope_theta", rope.theta}};
  if (rope.type != "default") rope_parameters["factor"] = rope.factor;
  if (rope.original_max_positions > 0) {
    rope_parameters["original_max_position_embeddings"] = rope.original_max_positions;
  }
  if (rope.type == "llama3") {
    rope_parameters["low_freq_factor"] = rope.low_freq_factor;
    rope_parameters["high_freq_factor"] = rope.high_freq_factor;
  }
  json object = {{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"vocab_size", vocab_size},
                 {"hidden_size", hidden_size},
                 {"intermediate_size", intermediate_size},
                 {"num_hidden_layers", num_layers},
                 {"num_attention_heads", num_heads},
                 {"num_key_value_heads", num_kv_heads},
                 {"head_dim", head_dim},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", max_positions},
                 {"rms_norm_eps", rms_norm_eps},
                 {"attention_bias", attention_bias},
                 {"mlp_bias", mlp_bias},
                 {"tie_word_embeddings", tie_word_embeddings},
                 {"rope_theta", rope.theta},
                 {"rope_parameters", rope_parameters},
                 {"initializer_range", initializer_range},
                 {"torch_dtype", dtype}};
  if (eos_token_ids.size() == 1) object["eos_token_id"] = eos_token_ids[0];
  if (eos_token_ids.size() > 1) object["eos_token_id"] = eos_token_ids;
  return object.dump(2) + "\n";
}

}  // namespace llama
