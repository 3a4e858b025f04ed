// From which line of the program a collective is called.
#include "signature/call_subject.h"

namespace meshtorch::internal {
namespace {

thread_local const SourceLine* line_of_call = nullptr;

// Where the library's own files lie: "/somewhere/src/" of "/somewhere/src/signature/call_subject.cc".
constexpr std::string_view kThisFile = __FILE__;
constexpr std::string_view kLibrary = kThisFile.substr(0, kThisFile.rfind("signature/"));

SourceLine line_of_program(const CallSite& at) {
  const std::string_view file = at.file_name();
  return file.starts_with(kLibrary) ? SourceLine() : SourceLine{file, at.line()};
}

}  // namespace

CalledFrom::CalledFrom(const CallSite& at) : CalledFrom(line_of_program(at)) {}

CalledFrom::CalledFrom(const SourceLine& line) : line_(line), is_outermost_(line_of_call == nullptr) {
  if (is_outermost_) line_of_call = &line_;
}

CalledFrom::~CalledFrom() {
  if (is_outermost_) line_of_call = nullptr;
}

const SourceLine* CalledFrom::current() { return line_of_call; }

}  // namespace meshtorch::internal
