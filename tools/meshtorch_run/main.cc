// meshtorch-run: starts a program as several ranks on one machine and ends them together.
#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

#include "diagnose.h"
#include "launcher.h"
#include "options.h"

namespace {

// A closed standard stream would hand its number to the next pipe.
void fill_closed_standard_streams() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

int tell(const std::string& directory) {
  try {
    std::cout << meshtorch::run::diagnose(directory);
    return 0;
  } catch (const std::runtime_error& error) {
    std::cerr << "meshtorch-run: " << error.what() << "\n";
    return meshtorch::run::kUsageError;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace meshtorch::run;
  fill_closed_standard_streams();
  try {
    const ParsedOptions parsed = parse_options(argc, argv);
    if (!parsed.options) return parsed.exit_code;
    return parsed.options->diagnose.empty() ? launch(*parsed.options) : tell(parsed.options->diagnose);
  } catch (const std::exception& error) {
    std::cerr << "meshtorch-run: the launcher failed.\n  " << error.what()
              << "\n  do: check the limits of this machine (ulimit -a)\n";
    return kLauncherFailed;
  }
}
