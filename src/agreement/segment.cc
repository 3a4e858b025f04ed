// Memory that processes of one host share, and which processes those are.
#include "agreement/segment.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <utility>

#include "agreement/run_secret.h"
#include "core/size_signal.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kDoor = 4096;  // the first page holds the secret

std::string read_text(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The fields of /proc/<process>/stat from the state on, number 3; empty if there is no such process.
std::string process_facts(int process) {
  const std::string text = read_text(c10::str("/proc/", process, "/stat"));
  const std::size_t name_end = text.rfind(')');  // a name may contain anything
  return name_end == std::string::npos ? "" : text.substr(name_end + 1);
}

// What the door shows: it fits the address, and the run.
std::uint64_t sign_of(std::uint64_t secret) { return secret ^ secret_number("segment"); }

std::uint64_t random_secret() {
  std::random_device source;
  return (static_cast<std::uint64_t>(source()) << 32) | source() | 1U;
}

}  // namespace

Segment::Segment(int file, std::size_t bytes) : file_(file), bytes_(bytes) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    close(file_);
    TORCH_CHECK(false, "meshtorch: ", bytes_,
                " bytes of shared memory cannot be mapped: ", std::strerror(error),
                "\n  do: use the backend gloo, or give the processes more memory");
  }
  data_ = static_cast<char*>(memory) + kDoor;
}

std::shared_ptr<Segment> Segment::make(std::size_t bytes) {
  const SizeSignalBlocked no_signal;  // memory that is a file
  const int file = memfd_create("meshtorch", MFD_CLOEXEC);
  const bool is_made = file >= 0 && ftruncate(file, static_cast<off_t>(bytes + kDoor)) == 0;
  if (!is_made && file >= 0) close(file);
  TORCH_CHECK(is_made, "meshtorch: ", bytes, " bytes of shared memory cannot be had: ", std::strerror(errno),
              "\n  do: use the backend gloo, or give the processes more memory");
  std::shared_ptr<Segment> segment(new Segment(file, bytes + kDoor));
  segment->secret_ = random_secret();
  const std::uint64_t sign = sign_of(segment->secret_);
  std::memcpy(static_cast<char*>(segment->data_) - kDoor, &sign, sizeof(sign));
  return segment;
}

std::string Segment::address() const { return c10::str(getpid(), " ", file_, " ", bytes_, " ", secret_); }

std::shared_ptr<Segment> Segment::open(const std::string& address) {
  std::istringstream text(address);
  int process = 0;
  int maker_file = 0;
  std::size_t bytes = 0;
  std::uint64_t secret = 0;
  text >> process >> maker_file >> bytes >> secret;
  TORCH_INTERNAL_ASSERT(text && bytes > kDoor, "not a segment: ", address);
  const std::string path = c10::str("/proc/", process, "/fd/", maker_file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  TORCH_CHECK(file >= 0, "meshtorch: the shared memory of process ", process,
              " cannot be opened: ", std::strerror(errno),
              "\n  do: run all ranks as one user in one container, or use the backend gloo");
  struct stat facts{};
  const bool is_whole = fstat(file, &facts) == 0 && facts.st_size == static_cast<off_t>(bytes);
  if (!is_whole) close(file);
  TORCH_CHECK(is_whole, "meshtorch: process ", process,
              " shows another file than its shared memory\n  do: see that rank 0 is still running");
  std::shared_ptr<Segment> segment(new Segment(file, bytes));
  segment->secret_ = secret;
  std::uint64_t sign = 0;
  std::memcpy(&sign, static_cast<char*>(segment->data_) - kDoor, sizeof(sign));
  TORCH_CHECK(sign == sign_of(secret), "meshtorch: process ", process,
              " shows another file than its shared memory\n  do: see that rank 0 is still running");
  segment->close_door();
  return segment;
}

void Segment::close_door() {
  if (file_ >= 0) close(std::exchange(file_, -1));
}

Segment::~Segment() {
  close_door();
  munmap(static_cast<char*>(data_) - kDoor, bytes_);
}

std::string host_identity() {
  struct stat processes{};
  stat("/proc/self/ns/pid", &processes);
  const char* part = std::getenv("MESHTORCH_HOST_PART");
  return c10::str(read_text("/proc/sys/kernel/random/boot_id"), " ", processes.st_ino, " ", getuid(), " ",
                  part == nullptr ? "" : part);
}

std::uint64_t process_start(int process) {
  std::istringstream fields(process_facts(process));
  std::string state;
  fields >> state;
  if (!fields || state == "Z" || state == "X") return 0;
  std::string field;
  for (int number = 4; number <= 22; ++number) fields >> field;
  return fields ? std::stoull(field) : 0;
}

std::string process_state(int process) {
  std::istringstream fields(process_facts(process));
  char state = 'X';
  fields >> state;
  switch (state) {
    case 'T':
    case 't':
      return "is stopped";
    case 'Z':
    case 'X':
      return "has ended";
    case 'R':
      return "runs";
    default:
      return "sleeps";
  }
}

}  // namespace meshtorch::internal
