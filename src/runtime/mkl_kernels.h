// LibTorch's vector functions before several thread ranks use them.
#pragma once

namespace meshtorch::internal {

// The library behind cos, exp and their kin (MKL) chooses its code at the first use. Where several threads
// are first at once, one of them may be given code of less accuracy: a cosine was off by 1.5e-4, in one start
// of a hundred. So one thread goes first, alone. To be called before the ranks of a thread world run; does
// nothing the second time.
void warm_up_mkl_kernels();

}  // namespace meshtorch::internal
