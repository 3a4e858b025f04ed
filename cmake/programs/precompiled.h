// What programs on top of the library include, parsed once for all of them.
#pragma once

#include <meshtorch/meshtorch.h>
#include <torch/torch.h>
