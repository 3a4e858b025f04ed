// The machine of Python's pickles: a stack, a memo, and an operation a byte.
#include "checkpoint/plan/pickle.h"

#include <bit>
#include <stdexcept>
#include <unordered_map>

namespace meshtorch::checkpoint::internal {
namespace {

using Kind = Pickled::Kind;
using Items = std::vector<const Pickled*>;

class PickleReader {
 public:
  PickleReader(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}

  Pickle run() {
    for (;;) {
      const auto op = static_cast<unsigned char>(take(1)[0]);
      if (op == '.') break;
      step(op);
    }
    pickle_.root = pop();
    if (!stack_.empty() || at_ != bytes_.size()) fail("something is left after its end");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("meshtorch: the pickle is not understood: " + what + "\n  in: " + path_ +
                                ", byte " + std::to_string(at_) +
                                "\n  do: give a folder that torch.distributed.checkpoint wrote");
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail("it ends too early");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  std::uint64_t unsigned_of(std::size_t width) {
    std::uint64_t value = 0;
    const std::string_view digits = take(width);
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  std::string line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("a line has no end");
    std::string text(take(end - at_));
    take(1);
    return text;
  }

  Pickled* pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) fail("its stack is empty");
    Pickled* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Pickled& top() {
    if (stack_.empty()) fail("its stack is empty");
    return *stack_.back();
  }
  Items pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Items items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  Items pop_several(std::size_t count) {
    Items items(count);
    while (count-- > 0) items[count] = pop();
    return items;
  }

  Pickled& push(Kind kind) {
    stack_.push_back(&pickle_.values.emplace_back());
    stack_.back()->kind = kind;
    return *stack_.back();
  }
  void push_integer(std::int64_t value, Kind kind = Kind::integer) { push(kind).integer = value; }
  void push_text(std::string_view value) { push(Kind::text).text = value; }
  void push_list(Items items) { push(Kind::list).items = std::move(items); }
  void push_global(const std::string& module, const std::string& name) {
    push(Kind::global).text = module + "." + name;
  }
  // An integer of any width, of which those of 64 bits are data.
  void push_long(std::size_t width) {
    if (width > 8) fail("an integer has more than 64 bits");
    std::uint64_t value = unsigned_of(width);
    if (width > 0 && width < 8 && (value >> (8 * width - 1) & 1) != 0)
      value |= ~std::uint64_t{0} << (8 * width);
    push_integer(static_cast<std::int64_t>(value));
  }

  // The class or function below, with its arguments: an object of that name.
  void make_object(Items arguments) {
    const Pickled* maker = pop();
    if (maker->kind != Kind::global) fail("something is made that has no name");
    Pickled& object = push(Kind::object);
    object.text = maker->text;
    object.items = std::move(arguments);
  }
  Items pop_arguments() {
    const Pickled* arguments = pop();
    if (arguments->kind != Kind::list) fail("arguments are no tuple");
    return arguments->items;
  }

  void append(const Items& items, Kind kind) {
    if (top().kind != kind) fail("a value is put where it cannot be");
    if (kind == Kind::dict && items.size() % 2 != 0) fail("a key has no value");
    top().items.insert(top().items.end(), items.begin(), items.end());
  }

  void keep(std::uint64_t place) {
    if (stack_.empty()) fail("its stack is empty");
    memo_[place] = stack_.back();
  }
  void recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail("it refers to what it has not");
    stack_.push_back(found->second);
  }

  void step(unsigned char op) {
    switch (op) {
      case 0x80:  // protocol
        if (const auto protocol = unsigned_of(1); protocol < 2 || protocol > 5)
          fail("protocol " + std::to_string(protocol));
        return;
      case 0x95:  // frame
        take(8);
        return;
      case '(':
        return marks_.push_back(stack_.size());
      case '0':
        pop();
        return;
      case 'N':
        push(Kind::none);
        return;
      case 0x88:
      case 0x89:
        return push_integer(op == 0x88 ? 1 : 0, Kind::boolean);
      case 'K':
        return push_integer(static_cast<std::int64_t>(unsigned_of(1)));
      case 'M':
        return push_integer(static_cast<std::int64_t>(unsigned_of(2)));
      case 'J':
        return push_integer(static_cast<std::int32_t>(unsigned_of(4)));
      case 0x8a:
        return push_long(unsigned_of(1));
      case 'G':
        return push_number();
      case 0x8c:
      case 'C':
        return push_text(take(unsigned_of(1)));
      case 'X':
      case 'B':
        return push_text(take(unsigned_of(4)));
      case 0x8d:
      case 0x8e:
        return push_text(take(unsigned_of(8)));
      case ')':
      case ']':
      case 0x8f:  // set
        return push_list({});
      case '}':
        push(Kind::dict);
        return;
      case 0x85:
      case 0x86:
      case 0x87:
        return push_list(pop_several(op - 0x84U));
      case 't':
        return push_list(pop_to_mark());
      case 'a':
        return append(pop_several(1), Kind::list);
      case 'e':
      case 0x90:
        return append(pop_to_mark(), Kind::list);
      case 's':
        return append(pop_several(2), Kind::dict);
      case 'u':
        return append(pop_to_mark(), Kind::dict);
      case 0x94:
        return keep(memo_.size());
      case 'q':
        return keep(unsigned_of(1));
      case 'r':
        return keep(unsigned_of(4));
      case 'h':
        return recall(unsigned_of(1));
      case 'j':
        return recall(unsigned_of(4));
      case 'c': {
        const std::string module = line();
        return push_global(module, line());
      }
      case 0x93: {
        const auto names = pop_several(2);
        if (names[0]->kind != Kind::text || names[1]->kind != Kind::text) fail("a name is no text");
        return push_global(names[0]->text, names[1]->text);
      }
      case 'R':
      case 0x81:
        return make_object(pop_arguments());
      case 'b': {
        const Pickled* state = pop();
        if (top().kind != Kind::object) fail("a state is given to what is no object");
        top().state = state;
        return;
      }
      default:
        fail("operation " + std::to_string(op));
    }
  }

  // The one number that is written with its first byte first.
  void push_number() {
    std::uint64_t bits = 0;
    for (const char digit : take(8)) bits = bits << 8 | static_cast<unsigned char>(digit);
    push(Kind::number).number = std::bit_cast<double>(bits);
  }

  const std::string& path_;
  std::string_view bytes_;
  std::size_t at_ = 0;
  Pickle pickle_;
  std::vector<Pickled*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Pickled*> memo_;
};

}  // namespace

const Pickled* Pickled::find(std::string_view key) const {
  const Pickled* dict = kind == Kind::object ? state : this;
  if (dict == nullptr || dict->kind != Kind::dict) return nullptr;
  for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    if (dict->items[i]->kind == Kind::text && dict->items[i]->text == key) return dict->items[i + 1];
  }
  return nullptr;
}

Pickle read_pickle(const std::string& path, std::string_view bytes) {
  return PickleReader(path, bytes).run();
}

}  // namespace meshtorch::checkpoint::internal
