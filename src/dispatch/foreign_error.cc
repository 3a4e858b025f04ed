// Errors of a language that embeds the library.
#include "dispatch/foreign_error.h"

namespace meshtorch::internal {
namespace {

ShapeErrorReader& reader_of_shape_errors() {
  static ShapeErrorReader reader = nullptr;
  return reader;
}

}  // namespace

void set_shape_error_reader(ShapeErrorReader reader) { reader_of_shape_errors() = reader; }

bool is_wrong_call(const std::exception& error, bool forgive) {
  const ShapeErrorReader reader = reader_of_shape_errors();
  return reader != nullptr && reader(error, forgive);
}

}  // namespace meshtorch::internal
