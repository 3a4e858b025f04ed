// Reads the command line with CLI11, checks the values and explains each mistake.
#include "options.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <memory>
#include <stdexcept>

#ifndef MESHTORCH_VERSION
#define MESHTORCH_VERSION "(development build)"
#endif

namespace meshtorch::run {
namespace {

constexpr int kLargestPort = 65535;
constexpr int kLargestWorld = 1 << 20;

constexpr const char* kFooter = R"(Each rank finds in its environment:
  RANK, WORLD_SIZE               its number among all processes, and how many there are
  LOCAL_RANK, LOCAL_WORLD_SIZE   the same among the processes of this machine
  NODE_RANK, GROUP_RANK          the number of this machine
  MASTER_ADDR, MASTER_PORT       where the ranks meet
  OMP_NUM_THREADS                max(1, cores / processes), unless it is already set
  MESHTORCH_RESTART              how often all ranks were started before (--max-restarts)

Output is passed on in whole lines, each with its rank in front. Rank 0 reads the standard input of
meshtorch-run, the other ranks read nothing.
When a rank fails, it is named, the others are ended (SIGTERM, after the grace SIGKILL) and its exit
code is passed on; a rank ended by signal S gives 128+S. Ctrl-C ends all ranks, a second one at once.
Other exit codes: 2 wrong options, 124 timeout, 125 the launcher failed, 126 the program cannot be
run, 127 the program was not found.

Examples:
  meshtorch-run -n 4 ./train --steps 100
  meshtorch-run -n 8 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500 ./train)";

class UsageFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: meshtorch-run -n PROCESSES [options] [--] program [arguments...]\n";
  }
};

bool takes_a_value(const CLI::App& app, const std::string& word) {
  if (word.find('=') != std::string::npos) return false;
  const bool value_is_attached = word.size() > 2 && word[1] != '-';
  if (value_is_attached) return false;
  const CLI::Option* option = app.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_max() > 0;
}

// The launcher never looks at the words of the program, so that none can be mistaken for an option.
std::size_t count_own_words(const CLI::App& app, const std::vector<std::string>& words) {
  std::size_t i = 0;
  while (i < words.size() && words[i].size() > 1 && words[i][0] == '-' && words[i] != "--")
    i += takes_a_value(app, words[i]) ? 2 : 1;
  return std::min(i, words.size());
}

[[noreturn]] void reject(const std::string& wrong, const std::string& where, const std::string& remedy) {
  throw std::invalid_argument(wrong + "\n  " + where + "\n  do: " + remedy);
}

void check_seconds(const std::string& name, double seconds) {
  if (std::isfinite(seconds) && seconds >= 0) return;
  reject(name + " is not a length of time.", name + " " + std::to_string(seconds),
         "give a number of seconds that is 0 or more");
}

void check_machines(const Options& options, const CLI::App& app) {
  const std::string nnodes = "--nnodes " + std::to_string(options.nnodes);
  if (options.nnodes < 1) reject("there must be at least one machine.", nnodes, "give --nnodes 1 or more");
  if (options.nnodes > 1) {
    std::string missing;
    for (const char* name : {"--node-rank", "--master-addr", "--master-port"})
      if (app.count(name) == 0) missing += (missing.empty() ? "" : ", ") + std::string(name);
    if (!missing.empty())
      reject("several machines need --node-rank, --master-addr and --master-port.",
             nnodes + ", without " + missing,
             "give on every machine its own --node-rank, and the same address and free port of "
             "machine 0");
  }
  if (options.node_rank < 0 || options.node_rank >= options.nnodes)
    reject("there is no such machine.", "--node-rank " + std::to_string(options.node_rank) + ", " + nnodes,
           "number the machines from 0 to --nnodes minus 1");
}

void check(const Options& options, const CLI::App& app) {
  if (app.count("--diagnose") > 0) return;
  const std::string processes = "-n " + std::to_string(options.processes);
  if (app.count("-n") == 0)
    reject("the number of processes is missing.", "option -n", "for instance meshtorch-run -n 4 ./program");
  if (options.processes < 1) reject("there must be at least one process.", processes, "give -n 1 or more");
  check_machines(options, app);
  if (options.processes > kLargestWorld / options.nnodes)
    reject("that is more processes than this launcher counts.",
           processes + ", --nnodes " + std::to_string(options.nnodes),
           "stay within " + std::to_string(kLargestWorld) + " in all");
  if (app.count("--master-port") > 0 && (options.master_port < 1 || options.master_port > kLargestPort))
    reject("there is no such port.", "--master-port " + std::to_string(options.master_port),
           "give a port from 1 to 65535");
  if (options.master_addr.empty())
    reject("the address is empty.", "option --master-addr", "give a host name or an IP address of machine 0");
  check_seconds("--grace", options.grace_seconds);
  check_seconds("--timeout", options.timeout_seconds);
  if (options.max_restarts < 0 || (options.max_restarts > 0 && options.nnodes > 1))
    reject("ranks are restarted a number of times, on one machine.",
           "--max-restarts " + std::to_string(options.max_restarts) + ", --nnodes " +
               std::to_string(options.nnodes),
           "give 0 or more, and on several machines 0");
  if (options.command.empty())
    reject("the program is missing.", "after the options", "for instance meshtorch-run -n 4 ./program");
}

void declare_options(CLI::App& app, Options& options, bool& no_prefix) {
  app.formatter(std::make_shared<UsageFormatter>());
  app.footer(kFooter);
  app.set_version_flag("--version", "meshtorch-run " MESHTORCH_VERSION);
  app.add_option("-n,--nproc-per-node", options.processes, "processes on this machine")
      ->type_name("PROCESSES");
  app.add_option("--nnodes", options.nnodes, "machines, each with as many processes (default 1)")
      ->type_name("MACHINES");
  app.add_option("--node-rank", options.node_rank, "number of this machine, from 0")->type_name("NUMBER");
  app.add_option("--master-addr", options.master_addr, "address of machine 0 (default 127.0.0.1)")
      ->type_name("ADDRESS");
  app.add_option("--master-port", options.master_port, "port on machine 0 (default: a free one)")
      ->type_name("PORT");
  app.add_flag("--no-prefix", no_prefix, "pass lines on without their rank in front");
  app.add_option("--grace", options.grace_seconds, "time between SIGTERM and SIGKILL (default 5)")
      ->type_name("SECONDS");
  app.add_option("--timeout", options.timeout_seconds, "end a run that takes longer (default 0: none)")
      ->type_name("SECONDS");
  app.add_option("--max-restarts", options.max_restarts,
                 "start all ranks again after a rank failed, up to so often (default 0)")
      ->type_name("TIMES");
  app.add_option("--flight-record", options.flight_record,
                 "directory for the last collectives of each rank, written when one fails, at the end and at "
                 "SIGUSR1 to a rank")
      ->type_name("DIRECTORY");
  app.add_option("--diagnose", options.diagnose,
                 "say what the flight records in a directory show, and run nothing")
      ->type_name("DIRECTORY");
}

ParsedOptions usage_error(const std::string& message) {
  std::cerr << "meshtorch-run: " << message << "\n";
  return {std::nullopt, kUsageError};
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  Options options;
  bool no_prefix = false;
  CLI::App app("Starts a program as several ranks on this machine and ends them together.", "meshtorch-run");
  declare_options(app, options, no_prefix);

  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const auto own_words = static_cast<std::ptrdiff_t>(count_own_words(app, words));
  try {
    // CLI11 takes a vector from its back.
    app.parse(std::vector<std::string>(words.rend() - own_words, words.rend()));
    auto program = words.begin() + own_words;
    if (program != words.end() && *program == "--") ++program;
    options.command.assign(program, words.end());
    options.prefix = !no_prefix;
    check(options, app);
  } catch (const CLI::Success& help_or_version) {
    return {std::nullopt, app.exit(help_or_version)};
  } catch (const CLI::ParseError& error) {
    return usage_error(std::string(error.what()) + "\n  among the options before the program\n" +
                       "  do: see meshtorch-run --help");
  } catch (const std::invalid_argument& error) {
    return usage_error(error.what());
  }
  return {options, 0};
}

}  // namespace meshtorch::run
