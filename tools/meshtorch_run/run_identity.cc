// What tells the processes of one run from all others.
#include "run_identity.h"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace meshtorch::run {

std::string random_identity() {
  std::random_device source;
  std::string text;
  for (int i = 0; i < 4; ++i) {
    char part[9];
    std::snprintf(part, sizeof part, "%08x", source());
    text += part;
  }
  return text;
}

std::vector<pid_t> processes_of_run(const std::string& identity) {
  const std::string entry = std::string(kIdentityVariable) + "=" + identity + '\0';
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = process.path().filename().string();
    pid_t pid = 0;
    const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (problem != std::errc() || end != name.data() + name.size()) continue;
    std::ifstream file(process.path() / "environ", std::ios::binary);
    const std::string environment{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (environment.find(entry) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace meshtorch::run
