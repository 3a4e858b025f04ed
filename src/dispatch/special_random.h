// Random operators on distributed tensors: their numbers depend on seed, call number and global index only.
#pragma once

#include <string>

namespace meshtorch {

class Handler;

// What is done for the random operator of this name ("normal_"); null for operators that are not random.
void (*random_operator(const std::string& name))(Handler&);

// For random operators that have no such definition (poisson, multinomial): runs them whole on every rank
// with a generator of torch whose seed is drawn, so that all ranks get the same, whatever their number.
void draw_replicated(Handler& call);

// For random operators that take no generator: the ranks would draw unequal numbers.
void refuse_to_draw(Handler& call);

}  // namespace meshtorch
