// Reads every tensor of a path and writes them to one file: rewrite FROM TO. exchange.py compares both.
#include <meshtorch/safetensors.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const meshtorch::safetensors::Files files(argv[1]);
    meshtorch::safetensors::NamedTensors tensors;
    for (const std::string& name : files.names()) tensors.emplace_back(name, files.read(name));
    meshtorch::safetensors::write(argv[2], tensors, files.metadata());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
