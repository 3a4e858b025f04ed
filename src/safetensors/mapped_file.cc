// A file that is read through memory.
#include "safetensors/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "safetensors/file_error.h"

namespace meshtorch::safetensors {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw file_error("cannot open", path, errno);
  struct stat status{};
  void* memory = nullptr;
  int error = 0;
  if (::fstat(file, &status) != 0) {
    error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  } else if (status.st_size > 0) {  // an empty map is an error
    memory = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  ::close(file);
  if (error != 0) throw file_error("cannot read", path, error);
  bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(status.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release(std::size_t begin, std::size_t end) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  begin = (begin + page - 1) / page * page;
  end = end == bytes_.size() ? end : end / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace meshtorch::safetensors
