// The one list of the core's pairs. A new pair is a line here, and the scorer in that line.
#pragma once

#include <string_view>

// PAIR(name, scorer): the pair's name in Python, and its scorer for sums of type T. Tanh also takes the instruction
// set's Reciprocal of float32. See kernel.cpp.
#define ANYSCORE_PAIRS(PAIR) \
    PAIR(product, Plain<Product, T>) \
    PAIR(tanh, Tanh<T, Reciprocal>) \
    PAIR(leaky_relu, Split<LeakyRelu, T>) \
    PAIR(absolute, Split<Absolute, T>) \
    PAIR(squared, Split<Squared, T>)

namespace anyscore {

#define ANYSCORE_NAME(name, ...) #name,
constexpr std::string_view PAIR_NAMES[] = {ANYSCORE_PAIRS(ANYSCORE_NAME)};
#undef ANYSCORE_NAME
constexpr int PAIRS = sizeof PAIR_NAMES / sizeof PAIR_NAMES[0];

// Returns the row of a pair in the table of kernels; PAIRS if no pair has this name.
constexpr int pair_row(std::string_view name) {
    int row = 0;
    while (row < PAIRS && PAIR_NAMES[row] != name) row++;
    return row;
}

}  // namespace anyscore
