// From which line of the program a collective is called.
#include "comm/call_subject.h"

namespace meshtorch::internal {
namespace {

thread_local const SourceLine* line_of_call = nullptr;

}  // namespace

CalledFrom::CalledFrom(const SourceLine& line) : line_(line), is_outermost_(line_of_call == nullptr) {
  if (is_outermost_) line_of_call = &line_;
}

CalledFrom::~CalledFrom() {
  if (is_outermost_) line_of_call = nullptr;
}

const SourceLine* CalledFrom::current() { return line_of_call; }

}  // namespace meshtorch::internal
