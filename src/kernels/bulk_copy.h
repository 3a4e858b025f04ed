// Copies of many bytes, which the core that makes them does not read soon: written past its caches.
#pragma once

#include <cstddef>

#include "kernels/runs.h"

namespace meshtorch::internal {

// As copy_stream. What is more than the cache next to a core holds is written past the caches: it would not
// stay there, and would drive out what the core computes with. Others see the bytes as those of any copy.
void copy_bulk(RunCursor from, RunCursor to, std::size_t bytes);
void copy_bulk(RunList from, char* to);
void copy_bulk(const char* from, RunList to);

// Whether that is more than the cache next to a core holds.
bool is_more_than_a_cache(std::size_t bytes);
// A part of what is more than a cache holds, past the caches. After the last part, finish_stores() before
// anybody is told that the bytes are there.
void store_past_caches(char* to, const char* from, std::size_t bytes);
void finish_stores();

// To two places that have the same bytes as `from`, which is read once.
void copy_bulk_twice(RunList from, char* first, RunList second);

}  // namespace meshtorch::internal
