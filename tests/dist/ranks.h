// Runs the body of a test on n ranks: threads of this process, or processes when a launcher started it, on
// the backend that MESHTORCH_TEST_BACKEND names.
#pragma once

#include "precompiled.h"

namespace meshtorch::testing {

namespace mt = meshtorch;

// Runs `body` on ranks 0 … n - 1 of a world of n ranks that is made for it. A rank that throws fails the
// test; a collective that takes a minute is an error on every rank. Under a launcher, processes beyond n take
// no part.
void on_ranks(int n, const std::function<void(int rank)>& body);

// True when the ranks are processes.
bool ranks_are_processes();
// True unless they talk through gloo.
bool ranks_share_memory();

// The message that `call` throws, without backtrace; fails the test if it throws nothing.
std::string error_of(const std::function<void()>& call);

// Exact and approximate equality of plain tensors, shape and type included.
::testing::AssertionResult is_equal(const torch::Tensor& actual, const torch::Tensor& expected);
::testing::AssertionResult is_close(const torch::Tensor& actual, const torch::Tensor& expected,
                                    double tolerance = 1e-6);

}  // namespace meshtorch::testing
