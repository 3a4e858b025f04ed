// Why this rank will not come to its next collective, told to those who wait for it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace meshtorch::internal {

// The calling rank is a process that ends: "failed", "has exited with code 3". Every member of its groups
// that waits for it, now or later, throws with these words, the process, its host, and the collective it was
// last in or after. Never throws and never waits long: it is called when something else went wrong.
void announce_exit(const std::string& end, const std::string& reason) noexcept;

// An operator of the calling rank failed. Those who wait for the rank are told so too, until its next
// collective.
void note_failed_operator(const std::string& name, const std::exception_ptr& error) noexcept;

// A call of an operator on this rank's own data failed, of which the ranks of the mesh have different parts:
// `ranks` are those that call it alike. Each of the others throws it at its next collective with a rank that
// knows of it. Not where the error is that of a collective, which all know of.
void tell_failed_call(const std::vector<std::int64_t>& ranks, const std::exception_ptr& error) noexcept;

// From now on the end of this process by an exception that nobody catches, or by exit(), is told.
void watch_end_of_process();

}  // namespace meshtorch::internal
