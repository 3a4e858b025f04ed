// Finding out who this rank is and where the others are.
#include "world/rendezvous.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>

#include "agreement/run_secret.h"
#include "liveness/watched_store.h"
#include "world/served_store.h"

namespace meshtorch::internal {
namespace {

// The variables in which one launcher says who a rank is.
struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;
};
constexpr std::array<Launcher, 5> kLaunchers{{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},  // torchrun, meshtorch-run
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};
constexpr const char* kHowToLaunch =
    "\n  do: start the program with `meshtorch-run -n 4 ./program` or torchrun, or give rank and world_size";

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int to_number(const std::string& text, const std::string& name) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && number >= 0,
                    "meshtorch: ", name, " is \"", text,
                    "\", which is not a whole number\n  do: give a number of 0 or more");
  return number;
}

std::optional<int> number_variable(const char* name) {
  const auto text = variable(name);
  return text ? std::optional<int>(to_number(*text, name)) : std::nullopt;
}

// "scheme://host:port/path?key=value&…"
struct Address {
  std::string scheme;
  std::string place;
  std::map<std::string, std::string> query;
};

Address parse_address(const std::string& text) {
  Address address;
  const auto colon = text.find("://");
  TORCH_CHECK_VALUE(colon != std::string::npos, "meshtorch: init_method \"", text,
                    "\" has no scheme\n  do: use env://, tcp://host:port, file:///path or threads://name");
  address.scheme = text.substr(0, colon);
  const auto question = text.find('?', colon);
  address.place =
      text.substr(colon + 3, question == std::string::npos ? std::string::npos : question - colon - 3);
  std::string rest = question == std::string::npos ? "" : text.substr(question + 1);
  while (!rest.empty()) {
    const auto end = rest.find('&');
    const std::string item = rest.substr(0, end);
    const auto equals = item.find('=');
    TORCH_CHECK_VALUE(equals != std::string::npos, "meshtorch: \"", item, "\" in init_method \"", text,
                      "\" is not of the form key=value");
    address.query[item.substr(0, equals)] = item.substr(equals + 1);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  return address;
}

// A number that may come from several places, which must agree.
class Agreed {
 public:
  explicit Agreed(std::string what) : what_(std::move(what)) {}
  void offer(int value, const std::string& source) {
    if (source_.empty()) {
      value_ = value;
      source_ = source;
    }
    TORCH_CHECK_VALUE(value == value_, "meshtorch: the ", what_, " is ", value_, " by ", source_, ", but ",
                      value, " by ", source, "\n  do: make them agree, or give one of them only");
  }
  bool has_value() const { return !source_.empty(); }
  int value() const { return value_; }
  const std::string& source() const { return source_; }

 private:
  std::string what_;
  int value_ = 0;
  std::string source_;
};

struct Identity {
  Agreed rank{"rank"};
  Agreed world_size{"world size"};
  std::optional<int> local_rank;
  std::string local_rank_source;
};

void read_environment(Identity& who) {
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = number_variable(launcher.rank);
    const auto size = number_variable(launcher.world_size);
    if (!rank && !size) continue;
    TORCH_CHECK_VALUE(rank || who.rank.has_value(), "meshtorch: ", launcher.world_size, " is set but ",
                      launcher.rank, " is not", kHowToLaunch);
    TORCH_CHECK_VALUE(size || who.world_size.has_value(), "meshtorch: ", launcher.rank, " is set but ",
                      launcher.world_size, " is not", kHowToLaunch);
    if (rank) who.rank.offer(*rank, launcher.rank);
    if (size) who.world_size.offer(*size, launcher.world_size);
    who.local_rank = number_variable(launcher.local_rank);
    who.local_rank_source = launcher.local_rank;
    return;
  }
}

Identity identify(const InitOptions& options, const Address& address) {
  Identity who;
  if (options.rank >= 0) who.rank.offer(options.rank, "options.rank");
  if (options.world_size >= 0) who.world_size.offer(options.world_size, "options.world_size");
  if (const auto rank = address.query.find("rank"); rank != address.query.end()) {
    who.rank.offer(to_number(rank->second, "rank in init_method"), "init_method");
  }
  if (const auto size = address.query.find("world_size"); size != address.query.end()) {
    who.world_size.offer(to_number(size->second, "world_size in init_method"), "init_method");
  }
  if (!who.rank.has_value() || !who.world_size.has_value() || address.scheme == "env") read_environment(who);
  TORCH_CHECK_VALUE(who.rank.has_value(), "meshtorch: RANK is not set, and no rank was given", kHowToLaunch);
  TORCH_CHECK_VALUE(who.world_size.has_value(),
                    "meshtorch: WORLD_SIZE is not set, and no world size was given", kHowToLaunch);
  TORCH_CHECK_VALUE(who.world_size.value() >= 1, "meshtorch: the world size is 0 by ",
                    who.world_size.source(), "\n  do: give the number of ranks");
  TORCH_CHECK_VALUE(who.rank.value() < who.world_size.value(), "meshtorch: rank ", who.rank.value(), " (",
                    who.rank.source(), ") is not below the world size ", who.world_size.value(), " (",
                    who.world_size.source(), ")\n  do: number the ranks from 0");
  TORCH_CHECK_VALUE(!who.local_rank || *who.local_rank < who.world_size.value(),
                    "meshtorch: ", who.local_rank_source, " is ", who.local_rank.value_or(0),
                    ", which is not below the world size ", who.world_size.value(), " (",
                    who.world_size.source(), ")\n  do: number the ranks of a machine from 0");
  return who;
}

// The store as the ranks of one run see it: under a prefix that others do not know. A rank of another run is
// told so, where it would wait for keys that never come.
c10::intrusive_ptr<c10d::Store> of_this_run(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Identity& who) {
  constexpr const char* kProof = "meshtorch/run";
  const std::string mine = secret_text("proof");
  if (who.rank.value() == 0) {
    set_text(*store, kProof, mine);
  } else {
    const AtStore at_store(0, "the start of all ranks");
    TORCH_CHECK(text_at(*store, kProof) == mine, "meshtorch: rank ", who.rank.value(),
                " has another secret (MESHTORCH_SECRET) than rank 0: it is not of the same run\n  do: give "
                "each run an address of its own, and all ranks of a run the same secret");
  }
  return c10::make_intrusive<c10d::PrefixStore>("meshtorch/" + secret_text("store"), store);
}

c10::intrusive_ptr<c10d::Store> connect_environment(const Identity& who, std::chrono::milliseconds timeout) {
  auto host = variable("MASTER_ADDR");
  if (!host) host = variable("SLURM_LAUNCH_NODE_IPADDR");
  TORCH_CHECK_VALUE(host, "meshtorch: MASTER_ADDR is not set", kHowToLaunch);
  const auto port = number_variable("MASTER_PORT");
  TORCH_CHECK_VALUE(port, "meshtorch: MASTER_PORT is not set", kHowToLaunch);
  // Under torchrun the agent serves the store, and a restarted worker must not see the keys of its
  // predecessor.
  const bool agent_serves = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const int rank = who.rank.value();
  auto store = connect_to_store({*host, *port, "MASTER_PORT"}, rank, rank == 0 && !agent_serves, timeout);
  if (!agent_serves) return store;
  const std::string attempt = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return c10::make_intrusive<c10d::PrefixStore>("meshtorch/attempt_" + attempt, store);
}

c10::intrusive_ptr<c10d::Store> connect(const Address& address, const Identity& who,
                                        std::chrono::milliseconds timeout) {
  if (address.scheme == "env") return connect_environment(who, timeout);
  if (address.scheme == "file") {
    TORCH_CHECK_VALUE(!address.place.empty(),
                      "meshtorch: init_method file:// names no file\n  do: write file:///path");
    return c10::make_intrusive<c10d::FileStore>(address.place, who.world_size.value());
  }
  TORCH_CHECK_VALUE(address.scheme == "tcp", "meshtorch: unknown init_method scheme \"", address.scheme,
                    "\"\n  do: use env://, tcp://host:port or file:///path");
  const auto colon = address.place.rfind(':');
  TORCH_CHECK_VALUE(colon != std::string::npos, "meshtorch: init_method tcp://", address.place,
                    " has no port\n  do: write tcp://host:port");
  const int port = to_number(address.place.substr(colon + 1), "the port in init_method");
  const int rank = who.rank.value();
  return connect_to_store({address.place.substr(0, colon), port, "init_method"}, rank, rank == 0, timeout);
}

}  // namespace

Meeting rendezvous(const InitOptions& options, std::chrono::milliseconds timeout, bool needs_store) {
  const Address address = parse_address(options.init_method);
  const Identity who = identify(options, address);
  Meeting meeting;
  meeting.rank = who.rank.value();
  meeting.world_size = who.world_size.value();
  meeting.local_rank = who.local_rank.value_or(meeting.rank);
  if (needs_store) {
    const auto store = connect(address, who, timeout);
    store->setTimeout(timeout);
    meeting.store = of_next_world(of_this_run(watched(store), who), meeting.rank, meeting.world_size);
  }
  return meeting;
}

std::optional<int> launched_world_size() {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank)) return number_variable(launcher.world_size);
  }
  return std::nullopt;
}

}  // namespace meshtorch::internal
