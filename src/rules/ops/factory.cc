// Rules of operators that make a tensor like another: only the other's shape matters.
#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// What is not set yet is pending where the other is: it will be written from something that lies like that.
const Rule kUnset = "*... -> ...";

// A new tensor of the shape of the old one is split as that is; of any other shape, not at all.
RuleUse new_tensor(const OpArguments& call) {
  const bool is_like = call.integers("size") == call.shape("self");
  RuleUse use{is_like ? Rule("... -> ...") : Rule("_.. -> _..")};
  if (is_like && call.name() == "new_empty") {
    use.rule = kUnset;
    use.kept = keeps_any();
  } else {
    use.shape_only = {"self"};
  }
  if (is_like) use.changes = {{LocalChange::Kind::result_sizes, "size"}};
  return use;
}

}  // namespace

void add_factory_rules(RuleTable& ops) {
  ops.add("empty_like", kUnset).keeps(keeps_any());
  for (const char* op : {"zeros_like", "ones_like", "full_like"}) {
    ops.add(op, "... -> ...").shape_only("self");
  }
  ops.choose({"new_empty", "new_zeros", "new_ones", "new_full"}, new_tensor);
}

}  // namespace meshtorch::internal
