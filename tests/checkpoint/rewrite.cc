// Reads every tensor of a path and writes them to one file: rewrite FROM TO. exchange.py compares both.
#include <meshtorch/dcp.h>
#include <meshtorch/safetensors.h>

#include <cstdio>
#include <filesystem>

namespace {

using meshtorch::safetensors::NamedTensors;

template <class Tensors>
NamedTensors all_of(const Tensors& source) {
  NamedTensors tensors;
  for (const std::string& name : source.names()) tensors.emplace_back(name, source.read(name));
  return tensors;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    if (std::filesystem::exists(std::filesystem::path(argv[1]) / ".metadata")) {
      meshtorch::safetensors::write(argv[2], all_of(meshtorch::dcp::Folder(argv[1])));
    } else {
      const meshtorch::safetensors::Files files(argv[1]);
      meshtorch::safetensors::write(argv[2], all_of(files), files.metadata());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
