// What happens around a wait for other ranks.
#include "runtime/blocking.h"

namespace meshtorch::internal {
namespace {

BlockingHooks& hooks() {
  static BlockingHooks hooks;
  return hooks;
}

}  // namespace

void set_blocking_hooks(const BlockingHooks& given) { hooks() = given; }

Blocking::Blocking() {
  if (hooks().begin != nullptr) token_ = hooks().begin();
}

Blocking::~Blocking() {
  if (token_ != nullptr) hooks().end(token_);
}

}  // namespace meshtorch::internal
