// A picture of how the loss fell.
#pragma once

#include <string>
#include <vector>

#include "training_log.h"

namespace llama {

// An SVG: every step's loss as a pale line, the mean of those around each as a strong one. Steps whose loss
// is not finite are left out.
std::string loss_curve_svg(const std::vector<StepRecord>& records, const std::string& title);

}  // namespace llama
