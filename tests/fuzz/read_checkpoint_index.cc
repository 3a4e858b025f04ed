// Indexes of checkpoints. Their checksum is put right first: what it protects has to be read with care all
// the same.
#include "checkpoint/plan/index.h"
#include "core/shallow_json.h"
#include "readers.h"

namespace meshtorch::fuzz {

void read_checkpoint_index(const std::string& text) {
  using checkpoint::internal::Index;
  std::string signed_text = text;
  try {
    auto whole = internal::parse_shallow_json(text);
    const std::string body = whole.at("body").dump();
    char digits[17];
    std::snprintf(
        digits, sizeof digits, "%016llx",
        static_cast<unsigned long long>(safetensors::internal::checksum(std::as_bytes(std::span(body)))));
    whole["checksum"] = digits;
    signed_text = whole.dump();
  } catch (const std::exception&) {  // no index: it is read as it is
  }
  const Index index = Index::from_text("checkpoint.json", signed_text);
  require(Index::from_text("checkpoint.json", index.to_text()) == index, "an index reads back as another");
}

}  // namespace meshtorch::fuzz
