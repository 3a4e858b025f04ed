// The version of the library.
//
// Until 1.0 a new minor version may change interfaces, and is binary compatible with no other; the name of
// the shared library says which it is (libmeshtorch.so.0.1). Patch versions keep both.
#pragma once

#define MESHTORCH_VERSION_MAJOR 0
#define MESHTORCH_VERSION_MINOR 1
#define MESHTORCH_VERSION_PATCH 0
#define MESHTORCH_VERSION "0.1.0"
// For comparisons: MESHTORCH_VERSION_NUMBER >= 100 is 0.1.0 or later.
#define MESHTORCH_VERSION_NUMBER \
  (MESHTORCH_VERSION_MAJOR * 10000 + MESHTORCH_VERSION_MINOR * 100 + MESHTORCH_VERSION_PATCH)
