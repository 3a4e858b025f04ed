// Times, sizes and shapes as people read them, the same text on every machine and under every locale. No
// torch.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace meshtorch::internal {

std::string bytes_text(std::int64_t bytes);                   // "512 B", "1.50 KiB"
std::string time_text(double seconds);                        // "12.00 us", "3.10 ms"
std::string shape_text(std::span<const std::int64_t> sizes);  // "(2, 3)"

}  // namespace meshtorch::internal
