// Whether what a training is to write can be written: hours after its first step would be too late to ask.
#pragma once

#include "train.h"

namespace llama {

// Throws an error that names the option unless every file and folder that the options name can be written.
// What is there stays as it is, and what is not there is not left behind. One rank calls it.
void check_outputs(const TrainOptions& options);

}  // namespace llama
