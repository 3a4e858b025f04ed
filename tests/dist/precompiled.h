// What every test that needs torch includes, parsed once.
#pragma once

#include <gtest/gtest.h>
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>
