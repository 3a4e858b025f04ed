// Calls of aten operators as text.
#include "call.h"

#include <cctype>
#include <charconv>
#include <stdexcept>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

// ---- tensors ----

at::ScalarType type_of(const TensorText& text) {
  if (text.kind == "bf") return at::kBFloat16;
  if (text.kind == "f") return text.number == 32 ? at::kFloat : text.number == 16 ? at::kHalf : at::kDouble;
  if (text.kind == "n" && text.number == 8) return at::kChar;
  if (text.kind == "n" && text.number == 32) return at::kInt;
  if (text.kind == "n" || text.kind == "i" || text.kind == "t") return at::kLong;
  if (text.kind == "b") return at::kBool;
  if (text.kind == "z") return text.number == 64 ? at::kComplexFloat : at::kComplexDouble;
  return at::kDouble;
}

// Seeds of the tensors of one call.
constexpr int64_t kSeedsOfACall = 100;

// All kinds are exact in binary, so that terms add up to them without rounding. A permutation that looks
// random, plus a slope: no two are equal, order and value are unrelated, and matrices have full rank.
Tensor unordered(at::IntArrayRef sizes, int64_t seed) {
  const int64_t n = c10::multiply_integers(sizes);
  const Tensor steps = torch::arange(n, torch::kLong);
  const Tensor keys = steps + 1009 * seed + 1;
  const Tensor order = (keys * keys * 31 + keys * 7919).remainder(104729).argsort(/*stable=*/true, /*dim=*/0);
  return (order / 4.0 - 1 + steps / 1024.0 + static_cast<double>(seed) / 8).to(torch::kDouble).view(sizes);
}

Tensor diagonal_of(at::IntArrayRef sizes, double value) {
  TORCH_CHECK_VALUE(sizes.size() >= 2, "a matrix has two dims");
  return torch::eye(sizes[sizes.size() - 2], sizes.back(), torch::kDouble) * value;
}

// ---- text ----

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected ") + c);
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(what + " at position " + std::to_string(at_) + " of: " + text_);
  }
  // A run of letters, digits and what stands in names and numbers.
  std::string word() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  std::strchr("_.+-", text_[at_]) != nullptr)) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  std::string until(char c) {
    const std::size_t end = text_.find(c, at_);
    if (end == std::string::npos) fail(std::string("expected ") + c);
    const std::string found = text_.substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }
  char next() {
    skip_spaces();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  std::vector<int64_t> integers(char end) {
    std::vector<int64_t> all;
    while (!take(end)) {
      all.push_back(std::stoll(word()));
      take(',');
    }
    return all;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  std::string text_;
  std::size_t at_ = 0;
};

TensorText parse_tensor(Reader& reader, const std::string& word) {
  TensorText tensor;
  const std::size_t digits = word.find_first_of("0123456789");
  tensor.kind = word.substr(0, digits);
  if (digits != std::string::npos) tensor.number = std::stoll(word.substr(digits));
  if (reader.take('{')) {
    tensor.values = reader.integers('}');
    tensor.sizes = {static_cast<int64_t>(tensor.values.size())};
  } else {
    reader.expect('[');
    tensor.sizes = reader.integers(']');
  }
  return tensor;
}

Value parse_word(const std::string& word) {
  Value value;
  value.text = word;
  if (word == "none" || word == "true" || word == "false") {
    value.kind = word == "none" ? Value::Kind::none : Value::Kind::boolean;
    value.integer = word == "true" ? 1 : 0;
    return value;
  }
  const char* const end = word.data() + word.size();
  if (const auto [stop, error] = std::from_chars(word.data(), end, value.integer);
      error == std::errc() && stop == end) {
    value.kind = Value::Kind::integer;
  } else if (const auto [rest, problem] = std::from_chars(word.data(), end, value.real);
             problem == std::errc() && rest == end) {
    value.kind = Value::Kind::real;
  } else {
    value.kind = Value::Kind::word;
  }
  return value;
}

Value parse_value(Reader& reader) {
  Value value;
  if (reader.take('[')) {
    value.kind = Value::Kind::list;
    while (!reader.take(']')) {
      value.items.push_back(parse_value(reader));
      reader.take(',');
    }
    return value;
  }
  if (reader.take('"')) {
    value.kind = Value::Kind::string;
    value.text = reader.until('"');
    return value;
  }
  const std::string word = reader.word();
  if (word.empty()) reader.fail("expected a value");
  if (reader.next() == '[' || reader.next() == '{') {
    value.kind = Value::Kind::tensor;
    value.tensor = parse_tensor(reader, word);
    return value;
  }
  return parse_word(word);
}

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}

// ---- the dispatcher's values ----

at::ScalarType type_named(const std::string& word) {
  static const std::map<std::string, at::ScalarType> types{{"float", at::kFloat},
                                                           {"double", at::kDouble},
                                                           {"half", at::kHalf},
                                                           {"bfloat16", at::kBFloat16},
                                                           {"long", at::kLong},
                                                           {"int", at::kInt},
                                                           {"char", at::kChar},
                                                           {"bool", at::kBool},
                                                           {"short", at::kShort},
                                                           {"byte", at::kByte},
                                                           {"complex", at::kComplexDouble},
                                                           {"complex64", at::kComplexFloat}};
  const auto found = types.find(word);
  if (found == types.end()) throw std::invalid_argument("no dtype is called " + word);
  return found->second;
}

class Filler {
 public:
  explicit Filler(const std::vector<Tensor>& tensors) : tensors_(tensors) {}

  c10::IValue fill(const Value& value, const c10::Type& type) {
    if (type.kind() == c10::TypeKind::OptionalType) {
      if (value.kind == Value::Kind::none) return {};
      return fill(value, *type.castRaw<c10::OptionalType>()->getElementType());
    }
    const bool is_number = value.kind == Value::Kind::integer || value.kind == Value::Kind::real;
    if (is_number && type.kind() == c10::TypeKind::TensorType) return wrapped(value);
    switch (value.kind) {
      case Value::Kind::tensor:
        return tensors_.at(next_++);
      case Value::Kind::list:
        return fill_list(value, type);
      case Value::Kind::boolean:
        return value.integer != 0;
      case Value::Kind::integer:
        if (type.kind() == c10::TypeKind::FloatType) return static_cast<double>(value.integer);
        return value.integer;
      case Value::Kind::real:
        return value.real;
      case Value::Kind::string:
        return value.text;
      case Value::Kind::word:
        if (type.kind() == c10::TypeKind::DeviceObjType) return c10::Device(value.text);
        return static_cast<int64_t>(type_named(value.text));
      default:
        return {};
    }
  }

 private:
  // `x / 4` gives div.Tensor a number in the form of a tensor.
  static Tensor wrapped(const Value& value) {
    const Tensor number = value.kind == Value::Kind::integer ? at::scalar_tensor(value.integer, at::kLong)
                                                             : at::scalar_tensor(value.real, at::kDouble);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }

  c10::IValue fill_list(const Value& value, const c10::Type& type) {
    if (type.kind() != c10::TypeKind::ListType) throw std::invalid_argument("a list for " + type.str());
    const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
    c10::impl::GenericList list(element->kind() == c10::TypeKind::SymIntType ? c10::IntType::get() : element);
    for (const Value& item : value.items) list.push_back(fill(item, *element));
    return list;
  }

  const std::vector<Tensor>& tensors_;
  std::size_t next_ = 0;
};

template <class V, class Visit>
void for_each_tensor(V& value, const Visit& visit) {
  if (value.kind == Value::Kind::tensor) visit(value.tensor);
  for (auto& item : value.items) for_each_tensor(item, visit);
}

}  // namespace

Tensor TensorText::make(int64_t seed) const {
  const Tensor plain = numbers(sizes, torch::kDouble, seed);
  if (kind == "p") return (plain.abs() + 0.25).to(number == 32 ? at::kFloat : at::kDouble);
  if (kind == "u") return plain / 4;
  if (kind == "q") return (torch::sigmoid(plain) * 256).round() / 256;
  if (kind == "d") return unordered(sizes, seed);
  if (kind == "s") return std::get<0>(plain.sort(-1));
  if (kind == "m") return plain.matmul(plain.mT()) + diagonal_of(sizes, 4);
  if (kind == "l") return plain.tril() + diagonal_of(sizes, 4);
  if (kind == "t") return torch::tensor(values, torch::kLong);
  const Tensor counted = torch::arange(c10::multiply_integers(sizes), torch::kLong).view(sizes);
  if (kind == "i") return (counted * 5 + seed).remainder(std::max<int64_t>(number, 1));
  if (kind == "b") return plain > 0;
  if (kind == "z") return torch::complex(plain, numbers(sizes, torch::kDouble, seed + 50)).to(type_of(*this));
  if (kind == "n") return (plain * 4).to(type_of(*this));
  if (kind != "f" && kind != "bf") throw std::invalid_argument("no kind of tensor is called " + kind);
  return plain.to(type_of(*this));
}

std::string TensorText::to_string() const {
  if (kind == "t") return "t{" + joined(values) + "}";
  return kind + (number > 0 ? std::to_string(number) : "") + "[" + joined(sizes) + "]";
}

TensorText TensorText::like(const Tensor& tensor) {
  TensorText text;
  text.sizes = tensor.sizes().vec();
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kFloat) text.number = 32;
  if (type == at::kHalf) text.number = 16;
  if (type == at::kBFloat16) text = {"bf", 16, text.sizes, {}};
  if (type == at::kBool) text.kind = "b";
  if (at::isComplexType(type)) text.kind = "z";
  if (type == at::kComplexFloat) text.number = 64;
  if (at::isIntegralType(type, false)) text.kind = "n";
  if (type == at::kInt) text.number = 32;
  if (type == at::kChar) text.number = 8;
  return text;
}

std::string Value::to_string() const {
  switch (kind) {
    case Kind::tensor:
      return tensor.to_string();
    case Kind::list: {
      std::string all;
      for (const Value& item : items) all += (all.empty() ? "" : ", ") + item.to_string();
      return "[" + all + "]";
    }
    case Kind::boolean:
      return integer != 0 ? "true" : "false";
    case Kind::integer:
      return std::to_string(integer);
    case Kind::real: {
      std::string text_of_real = c10::str(real);
      if (text_of_real.find_first_of(".enf") == std::string::npos) text_of_real += ".0";
      return text_of_real;
    }
    case Kind::string:
      return '"' + text + '"';
    case Kind::word:
      return text;
    default:
      return "none";
  }
}

Call::Call(const c10::OperatorHandle& handle) : op(handle), arguments(handle.schema().arguments().size()) {}

Call Call::parse(const std::string& text) {
  Reader reader(text);
  const std::string operator_name = reader.word();
  const auto handle = operator_named(operator_name);
  if (!handle) throw std::invalid_argument("no operator is called " + operator_name);
  Call call(*handle);
  reader.expect(':');
  std::size_t position = 0;
  while (!reader.at_end()) {
    // "name=value" names an argument; only a name can stand before '='.
    Reader ahead = reader;
    const std::string name = ahead.word();
    if (ahead.take('=')) {
      reader = ahead;
      const auto index = handle->schema().argumentIndexWithName(name);
      if (!index) reader.fail("no argument " + name);
      position = static_cast<std::size_t>(*index);
    }
    if (position >= call.arguments.size()) reader.fail("too many arguments");
    call.arguments[position++] = parse_value(reader);
    if (!reader.take(',') && !reader.at_end()) reader.fail("expected ,");
  }
  return call;
}

std::string Call::name() const { return name_of(op.operator_name()); }

std::string Call::to_string() const {
  std::string text = name() + ":";
  bool is_first = true;
  bool skipped = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind == Value::Kind::standard) {
      skipped = true;
      continue;
    }
    text += is_first ? " " : ", ";
    if (skipped) text += op.schema().arguments()[i].name() + "=";
    text += arguments[i].to_string();
    is_first = false;
  }
  return text;
}

std::vector<TensorText*> Call::tensor_texts() {
  std::vector<TensorText*> all;
  for (Value& value : arguments) for_each_tensor(value, [&](TensorText& t) { all.push_back(&t); });
  return all;
}

std::vector<Tensor> Call::tensors() const {
  std::vector<Tensor> all;
  for (const Value& value : arguments) {
    for_each_tensor(value, [&](const TensorText& t) {
      all.push_back(t.make(static_cast<int64_t>(all.size()) + 1 + kSeedsOfACall * data));
    });
  }
  return all;
}

std::vector<std::size_t> Call::arguments_of_tensors() const {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const TensorText&) { all.push_back(i); });
  }
  return all;
}

torch::jit::Stack Call::stack(const std::vector<Tensor>& tensors) const {
  torch::jit::Stack stack;
  Filler filler(tensors);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    if (arguments[i].kind != Value::Kind::standard) {
      stack.push_back(filler.fill(arguments[i], *argument.type()));
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else {
      throw std::invalid_argument("argument " + argument.name() + " is missing in " + to_string());
    }
  }
  return stack;
}

std::string name_of(const c10::OperatorName& op) {
  std::string name = op.name.starts_with("aten::") ? op.name.substr(6) : op.name;
  return op.overload_name.empty() ? name : name + "." + op.overload_name;
}

std::optional<c10::OperatorHandle> operator_named(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace meshtorch::testing
