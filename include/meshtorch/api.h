// What the shared library offers: everything else in it is hidden.
#pragma once

// On each class and function of the public headers that is defined in the library.
#define MESHTORCH_API __attribute__((visibility("default")))
// On the internals that meshtorch's own Python module calls. They are in no public header, and may change at
// any time.
#define MESHTORCH_FOR_PYTHON MESHTORCH_API
