// The store of a world, at which ranks meet before they share memory or connections: a wait there ends when
// the rank that is waited for is gone, and when the store itself does not answer.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <vector>

#include "liveness/waits.h"

namespace meshtorch::internal {

// Alive while the calling thread waits at a store for other ranks: it says for whom and for what. Without
// one, a wait there is for a key.
class AtStore {
 public:
  AtStore(int world_rank, std::string what) : AtStore(std::vector<int>{world_rank}, std::move(what)) {}
  AtStore(std::vector<int> world_ranks, std::string what)
      : AtStore([ranks = std::move(world_ranks)] { return ranks; }, std::move(what)) {}
  // Asked when the wait takes long.
  AtStore(std::function<std::vector<int>()> late, std::string what);
  ~AtStore();
  AtStore(const AtStore&) = delete;
  AtStore& operator=(const AtStore&) = delete;

  // Null if there is none.
  static const AtStore* current();
  Wait wait() const;
  const std::string& what() const { return what_; }

 private:
  std::function<std::vector<int>()> late_;
  std::string what_;
  const AtStore* outer_;
};

// The same store, watched, if it is one of LibTorch's own.
c10::intrusive_ptr<c10d::Store> watched(const c10::intrusive_ptr<c10d::Store>& store);

// The value of a key as text, when it is there.
std::string text_at(c10d::Store& store, const std::string& key);
void set_text(c10d::Store& store, const std::string& key, const std::string& text);
// Blocks until so many ranks have come to `what`.
void wait_for_all(c10d::Store& store, const std::string& what, int size);
// Throws on every rank, with both values, unless all give the same one; `what` says of what. Every rank must
// ask.
void check_alike(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& what,
                 const std::string& value);

}  // namespace meshtorch::internal
