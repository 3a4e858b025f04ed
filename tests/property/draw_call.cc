// Draws calls of operators.
#include "draw_call.h"

#include "../dist/samples.h"
#include "trial.h"

namespace meshtorch::testing {
namespace {

constexpr std::size_t kAttempts = 40;

bool contains(const std::string& text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random() % choices.size()];
}
bool chance(Random& random, std::uint32_t percent) { return random() % 100 < percent; }

// ---- from the schema ----

class SchemaDraw {
 public:
  explicit SchemaDraw(Random& random) : random_(random) {
    using Sizes = std::vector<int64_t>;
    sizes_ = one_of<Sizes>(
        random, {{5, 4}, {5, 4}, {4}, {3, 5, 4}, {4, 4}, {3, 4, 4}, {2, 3, 6, 6}, {2, 4, 5, 6, 6}, {}});
    kind_ = chance(random, 75) ? "f" : one_of<const char*>(random, {"p", "u", "n", "b", "d", "z"});
  }

  Call draw(const c10::OperatorHandle& op) {
    Call call(op);
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const bool may_stay = arguments[i].default_value().has_value();
      if (may_stay && chance(random_, 70)) continue;
      call.arguments[i] = value(arguments[i], *arguments[i].type());
    }
    return call;
  }

 private:
  static Value of(Value::Kind kind, int64_t integer = 0) {
    Value v;
    v.kind = kind;
    v.integer = integer;
    return v;
  }
  static Value word(Value::Kind kind, std::string text) {
    Value v = of(kind);
    v.text = std::move(text);
    return v;
  }
  int64_t rank() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t dim() {
    const int64_t dims = std::max<int64_t>(rank(), 1);
    return static_cast<int64_t>(random_() % static_cast<std::uint32_t>(2 * dims)) - dims;
  }

  Value value(const c10::Argument& argument, const c10::Type& type) {
    switch (type.kind()) {
      case c10::TypeKind::OptionalType:
        if (chance(random_, 50)) return of(Value::Kind::none);
        return value(argument, *type.castRaw<c10::OptionalType>()->getElementType());
      case c10::TypeKind::ListType:
        return list(argument, *type.castRaw<c10::ListType>()->getElementType());
      case c10::TypeKind::TensorType:
        return tensor(argument.name());
      case c10::TypeKind::BoolType:
        return of(Value::Kind::boolean, random_() % 2);
      case c10::TypeKind::FloatType:
      case c10::TypeKind::NumberType: {
        if (type.kind() == c10::TypeKind::NumberType && chance(random_, 50))
          return of(Value::Kind::integer, one_of<int64_t>(random_, {1, 2, 3}));
        Value v = of(Value::Kind::real);
        v.real = one_of(random_, {0.5, 1.0, 0.25, 2.0});
        return v;
      }
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (argument.real_type()->str().find("ScalarType") != std::string::npos || argument.name() == "dtype")
          return word(Value::Kind::word, one_of<const char*>(random_, {"double", "float", "long"}));
        if (contains(argument.name(), {"memory_format", "layout"})) return of(Value::Kind::integer, 0);
        return integer(argument.name());
      case c10::TypeKind::StringType:
        return word(Value::Kind::string,
                    one_of<const char*>(
                        random_, {"mean", "sum", "none", "reflect", "ij", "trunc", "floor", "fro", "nuc",
                                  "prod", "amax", "linear", "left", "constant", "tanh", "reduced", "L"}));
      default:
        return of(Value::Kind::none);
    }
  }

  Value integer(const std::string& name) {
    if (contains(name, {"dim", "axis"})) return of(Value::Kind::integer, dim());
    return of(Value::Kind::integer, one_of<int64_t>(random_, {0, 1, 1, 2, 2, 3, 4}));
  }

  Value list(const c10::Argument& argument, const c10::Type& element) {
    Value v = of(Value::Kind::list);
    const std::string& name = argument.name();
    const bool is_integer =
        element.kind() == c10::TypeKind::IntType || element.kind() == c10::TypeKind::SymIntType;
    if (is_integer && contains(name, {"size", "shape"}) && !contains(name, {"kernel"})) {
      const std::size_t first = chance(random_, 60) ? 0 : random_() % (sizes_.size() + 1);
      for (std::size_t d = first; d < sizes_.size(); ++d)
        v.items.push_back(of(Value::Kind::integer, sizes_[d]));
      return v;
    }
    if (is_integer && contains(name, {"dim", "axes"})) {
      v.items.push_back(of(Value::Kind::integer, dim()));
      return v;
    }
    const int count = argument.N().value_or(
        element.kind() == c10::TypeKind::TensorType ? 2 : one_of(random_, {1, 2, 2, 4}));
    for (int i = 0; i < count; ++i) v.items.push_back(value(argument, element));
    return v;
  }

  Value tensor(const std::string& name) {
    Value v = of(Value::Kind::tensor);
    v.tensor.kind = kind_;
    v.tensor.sizes = sizes_;
    if (chance(random_, 20) && !sizes_.empty()) {
      v.tensor.sizes = one_of<std::vector<int64_t>>(
          random_, {{sizes_.back()}, {sizes_[0]}, {}, {sizes_.rbegin(), sizes_.rend()}});
    }
    if (contains(name, {"ind", "target", "offset", "length"})) v.tensor.kind = "i", v.tensor.number = 4;
    if (contains(name, {"mask", "condition"})) v.tensor.kind = "b";
    if (contains(name, {"sorted", "boundaries"})) v.tensor.kind = "s";
    return v;
  }

  Random& random_;
  std::vector<int64_t> sizes_;
  std::string kind_;
};

// ---- from samples ----

// Puts `to` for the size `from` of every tensor, for bounds of indices, and, if asked, in lists of integers.
void replace_size(Value& value, int64_t from, int64_t to, bool in_lists) {
  if (value.kind == Value::Kind::tensor && value.tensor.kind != "t") {
    for (int64_t& size : value.tensor.sizes) size = size == from ? to : size;
    if (value.tensor.kind == "i" && value.tensor.number == from) value.tensor.number = to;
  }
  for (Value& item : value.items) {
    if (in_lists && item.kind == Value::Kind::integer && item.integer == from) item.integer = to;
    replace_size(item, from, to, in_lists);
  }
}

}  // namespace

Call with_size(Call call, int64_t from, int64_t to, bool in_lists) {
  for (Value& value : call.arguments) replace_size(value, from, to, in_lists);
  return call;
}

std::vector<int64_t> sizes_in(Call call) {
  std::vector<int64_t> all;
  for (const TensorText* text : call.tensor_texts()) {
    for (const int64_t size : text->sizes) {
      if (std::find(all.begin(), all.end(), size) == all.end()) all.push_back(size);
    }
  }
  return all;
}

namespace {

// The sample with another size, or another type, or as it is.
Call varied(Call call, Random& random) {
  const std::vector<int64_t> sizes = sizes_in(call);
  if (!sizes.empty() && chance(random, 60)) {
    const int64_t from = sizes[random() % sizes.size()];
    const auto to = one_of<int64_t>(random, {1, 2, 3, 4, 5, 6, 7, 0});
    return with_size(std::move(call), from, to, chance(random, 50));
  }
  if (chance(random, 20)) {
    const auto to = one_of<int64_t>(random, {32, 32, 16});
    for (TensorText* text : call.tensor_texts()) {
      if (text->kind == "f") text->number = to;
    }
  }
  return call;
}

}  // namespace

bool takes_tensors(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  });
}

std::vector<DrawnCall> draw_calls(const c10::OperatorHandle& op, int count, Random& random,
                                  bool with_trials) {
  const std::vector<Call> samples = samples_of(op);
  const bool is_free = reason_not_to_draw(name_of(op.operator_name())).empty();
  if (samples.empty() && !is_free) return {};
  // The samples themselves first, then variations of them.
  const auto draw = [&](std::size_t attempt) {
    if (samples.empty()) return SchemaDraw(random).draw(op);
    if (attempt < samples.size() || !is_free) return samples[attempt % samples.size()];
    return varied(samples[random() % samples.size()], random);
  };
  const auto wanted = static_cast<std::size_t>(count);
  std::vector<DrawnCall> drawn;
  const auto take = [&](const Call& call) {
    if (auto run = plain_run(call)) drawn.push_back({call, std::move(*run)});
  };
  std::vector<Call> on_trial;
  for (std::size_t attempt = 0; attempt < kAttempts && drawn.size() < wanted; ++attempt) {
    Call call = draw(attempt);
    if (call.tensor_texts().empty()) continue;
    with_trials ? on_trial.push_back(std::move(call)) : take(call);
  }
  for (const Call& call : well_defined(on_trial, wanted)) take(call);
  return drawn;
}

namespace {

mt::Placements drawn_for(const torch::Tensor& t, std::size_t axes, Random& random) {
  // Dims are split twice as often as not.
  std::vector<mt::Placement> choices{mt::Replicate()};
  if (t.is_floating_point() || t.is_complex()) choices.emplace_back(mt::Partial());
  for (int64_t d = 0; d < t.dim(); ++d) choices.insert(choices.end(), 2, mt::Shard(d));
  mt::Placements placements;
  for (std::size_t axis = 0; axis < axes; ++axis) placements.push_back(choices[random() % choices.size()]);
  return placements;
}

}  // namespace

PlacedCall draw_placements(const DrawnCall& drawn, Random& random) {
  PlacedCall placed{drawn.call, one_of<std::vector<int64_t>>(random, {{2}, {3}, {4}, {2, 2}}), {}};
  for (const torch::Tensor& t : drawn.call.tensors())
    placed.placements.push_back(drawn_for(t, placed.mesh.size(), random));
  for (const torch::Tensor& t : drawn.expected.incoming)
    placed.incoming.push_back(drawn_for(t, placed.mesh.size(), random));
  return placed;
}

}  // namespace meshtorch::testing
