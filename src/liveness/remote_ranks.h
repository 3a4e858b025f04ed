// The members of a group on other hosts: what is known of them when a connection fails.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace meshtorch::internal {

// Writes an exit reason to the store of a world, for ranks that share no memory. Neither waits long nor
// throws.
void write_exit_reason(const c10::intrusive_ptr<c10d::Store>& world_store, int rank,
                       const std::string& words);

class RemoteRanks {
 public:
  // Every member must make one. `ranks` are the world ranks of the members, of which this is number `rank`
  // and reached at `address`; `here` are the numbers of those on this host.
  RemoteRanks(c10d::Store& group_store, c10::intrusive_ptr<c10d::Store> world_store,
              const std::vector<std::int64_t>& ranks, int rank, const std::vector<int>& here,
              const std::string& address);

  // Who is at fault, as far as exit reasons and the address in the backend's words tell; else who is
  // elsewhere.
  std::string explain(const std::string& backend_words) const;
  // "rank 2 on host-b (10.0.0.2) or rank 3 on …": all of them.
  std::string names() const { return names(""); }

 private:
  struct Remote {
    int rank;  // in the world
    std::string host;
    std::string address;
  };
  // "rank 2 on host-b" of all, or of those at one address.
  std::string names(const std::string& address) const;

  c10::intrusive_ptr<c10d::Store> world_store_;
  std::vector<Remote> remotes_;
};

}  // namespace meshtorch::internal
