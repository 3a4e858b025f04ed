// From where in the program a rank calls a collective.
#include "signature/call_place.h"

#include <execinfo.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace meshtorch::internal {

namespace {

namespace fs = std::filesystem;

std::atomic<std::string (*)()> place_in_program = nullptr;

constexpr int kDeepestStack = 512;
constexpr std::size_t kLongestName = 80;

// A file that is loaded into this process.
struct LoadedFile {
  std::string path;
  std::uint64_t begin = 0;  // where its addresses count from
};

std::optional<LoadedFile> file_at(const void* address) {
  struct Search {
    std::uint64_t address;
    std::optional<LoadedFile> found;
  } search{reinterpret_cast<std::uint64_t>(address), {}};
  const auto look = [](dl_phdr_info* info, std::size_t, void* data) {
    auto& wanted = *static_cast<Search*>(data);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& part = info->dlpi_phdr[i];
      const std::uint64_t begin = info->dlpi_addr + part.p_vaddr;
      if (part.p_type != PT_LOAD || wanted.address < begin || wanted.address >= begin + part.p_memsz)
        continue;
      wanted.found = {info->dlpi_name, info->dlpi_addr};
      return 1;
    }
    return 0;
  };
  dl_iterate_phdr(look, &search);
  if (search.found && search.found->path.empty()) {  // the program itself
    std::error_code error;
    search.found->path = fs::read_symlink("/proc/self/exe", error).string();
  }
  return search.found;
}

// Where meshtorch is part of the program's own file, nothing tells their functions apart: there is no place
// then.
bool is_of_the_program(const LoadedFile& file) {
  static const std::string own = file_at(reinterpret_cast<const void*>(&is_of_the_program))->path;
  if (file.path == own) return false;
  const std::string name = fs::path(file.path).filename();
  for (const std::string_view library :
       {"libtorch", "libc10", "libstdc++.", "libc++", "libgcc_s.", "libc.", "libpthread.", "libm.", "libgomp",
        "libomp", "linux-vdso", "ld-linux"}) {
    if (name.starts_with(library)) return false;
  }
  return !name.empty();
}

// What was found out of each return address so far: the file of the program, and the offset of the call.
struct KnownAddresses {
  std::mutex mutex;
  std::unordered_map<const void*, std::optional<LoadedFile>> files;
};

std::optional<LoadedFile> program_file_at(const void* address) {
  static auto* const known = new KnownAddresses;
  const std::scoped_lock lock(known->mutex);
  const auto [entry, is_new] = known->files.try_emplace(address);
  if (is_new) {
    entry->second = file_at(address);
    if (entry->second && !is_of_the_program(*entry->second)) entry->second.reset();
  }
  return entry->second;
}

// In single quotes for a shell.
std::string quoted(const std::string& text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? "'\\''" : std::string(1, c);
  return all + "'";
}

std::vector<std::string> lines_of(const std::string& command) {
  std::vector<std::string> lines;
  std::FILE* output = popen(command.c_str(), "re");
  if (output == nullptr) return lines;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    std::string text = line.data();
    if (text.ends_with('\n')) text.pop_back();
    lines.push_back(std::move(text));
  }
  pclose(output);
  return lines;
}

bool is_of_a_header(std::string_view function) {
  for (const std::string_view space : {"at::", "c10::", "torch::", "std::"}) {
    if (function.starts_with(space)) return true;
  }
  return false;
}

}  // namespace

void set_place_in_program(std::string (*say)()) { place_in_program = say; }

std::shared_ptr<const CallPlace> CallPlace::here() {
  auto place = std::make_shared<CallPlace>();
  if (const auto ask = place_in_program.load(std::memory_order_relaxed)) {
    place->said_ = ask();
  } else {
    std::array<void*, kDeepestStack> stack;
    const int depth = backtrace(stack.data(), kDeepestStack);
    for (int i = 0; i < depth && place->frames_.size() < kPlaceDepth; ++i) {
      const void* const call = static_cast<char*>(stack[static_cast<std::size_t>(i)]) - 1;
      if (auto file = program_file_at(call))
        place->frames_.push_back(
            {std::move(file->path), reinterpret_cast<std::uint64_t>(call) - file->begin});
    }
  }
  const bool is_known = !place->said_.empty() || !place->frames_.empty();
  return is_known ? place : nullptr;
}

void CallPlace::add_to(CallHash& hash) const {
  hash.add(said_);
  for (const Frame& frame : frames_) {
    hash.add(fs::path(frame.file).filename().string());
    hash.add(frame.offset);
  }
}

std::string CallPlace::text() const {
  std::string text = said_;
  for (const Frame& frame : frames_) text.append(text.empty() ? "" : ", called by ").append(text_of(frame));
  return text;
}

// The function that stands innermost in the source: one of LibTorch's headers that was compiled into the
// caller is not the place that is looked for.
std::string CallPlace::text_of(const Frame& frame) {
  std::array<char, 32> offset;
  std::snprintf(offset.data(), offset.size(), "0x%llx", static_cast<unsigned long long>(frame.offset));
  const std::string in_file = fs::path(frame.file).filename().string() + "+" + offset.data();
  // Nothing is fetched from elsewhere, and nobody waits for long.
  const std::vector<std::string> lines = lines_of("DEBUGINFOD_URLS= timeout 5 addr2line -Cfi -e " +
                                                  quoted(frame.file) + " " + offset.data() + " 2>/dev/null");
  std::string function;
  std::string source;
  for (std::size_t i = 0; i + 1 < lines.size(); i += 2) {  // a function and its line, from the innermost on
    function = lines[i];
    source = lines[i + 1];
    if (!is_of_a_header(function)) break;
  }
  source = source.substr(0, source.find(" ("));
  const bool has_line = !source.empty() && !source.ends_with('?') && !source.ends_with(":0");
  if (function.empty() || function == "??") return in_file;
  if (function.size() > kLongestName) function = function.substr(0, kLongestName) + "…";
  return function + " (" + (has_line ? fs::path(source).filename().string() : in_file) + ")";
}

}  // namespace meshtorch::internal
