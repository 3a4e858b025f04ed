// The memory of whole parameters: one storage that is given back and taken again, while tensors and what
// autograd saved of them keep pointing at it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

#include "core/shard.h"

namespace meshtorch::internal {

class GatheredMemory {
 public:
  struct Part {
    Shape shape;
    at::ScalarType type;
    friend bool operator==(const Part&, const Part&) = default;
  };
  // Room for contiguous tensors, one after the other. Reading them while there is no memory is an error that
  // names the owner.
  GatheredMemory(std::vector<Part> parts, at::Device device, const std::string& owner);

  bool fits(const std::vector<Part>& parts, at::Device device) const {
    return parts == parts_ && device == device_;
  }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Takes memory, whose content is undefined.
  void take();
  void give_back();

 private:
  c10::StorageImpl& storage() const { return *storage_.unsafeGetStorageImpl(); }

  std::vector<Part> parts_;
  at::Device device_;
  std::string owner_;
  std::int64_t bytes_ = 0;
  c10::Storage storage_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace meshtorch::internal
