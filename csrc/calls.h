// What is asked of the kernels, by Python (module.cpp) and by XLA (xla.cpp).
//
// Arrays may lack leading dimensions of 1. Raises std::invalid_argument, before any work.
#pragma once

#include <string>
#include <vector>

#include "view.h"

namespace anyscore {

// weight, key_bias, start, stop and keep may be none; value where only scores are wanted. streams: one
// for each problem, with dropout.
struct Inputs {
    std::string pair;
    View a, b, weight, key_bias, value, start, stop, keep;
    double scale = 1;
    Size groups = 1;
    double dropout = 0;
    std::vector<Stream> streams{};
};

// What forward gave, and the gradients of that.
struct Results {
    View output, lse, d_output, d_lse;
};

struct Gradients {
    Output a, b, weight, key_bias, value;
};

// One seed for the problems of lse (*lead, T_q), which are counted modulo `period`.
std::vector<Stream> streams(std::uint64_t seed, Size period, const View& lse);

void forward(Inputs& in, View& packed, Output& output, Output& lse, int threads);
void weights(Inputs& in, View& lse, Output& output, int threads);
void backward(Inputs& in, Results& of, Gradients& to, int threads);
void prepare_keys(const std::string& pair, View& b, Output& packed, int threads);

}  // namespace anyscore
