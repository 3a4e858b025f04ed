// What a training step frees stays with the process: the next step takes it again.
#pragma once

namespace meshtorch::internal {

// The C library would give large blocks back to the kernel each time they are freed, and the kernel would
// fill every page with zeros when they are taken again. Once a process; where the user has set limits of the
// C library's, these stay.
void configure_malloc_retention();

}  // namespace meshtorch::internal
