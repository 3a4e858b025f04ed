// The version of the library.
#pragma once

#define MESHTORCH_VERSION "0.1.0"
