// What is asked of the kernels, by Python (module.cpp) and by XLA (xla.cpp).
//
// Arrays may lack leading dimensions of 1. Raises std::invalid_argument, before any work.
#pragma once

#include <string>
#include <vector>

#include "bindings/arrays.h"

namespace anyscore {

// The arrays of a call, as `Operands` in anyscore/call/operands.py; what is not there is not given.
struct Operands {
    View a, b, weight, key_bias, value, bias, c, start, stop, mask, rowptr, col, colptr, order, row, packed;
    std::vector<Stream> streams{};  // one for each problem, with dropout
};

// All of them by name, in the order of Python's. The seed is no array for Python.
struct Operand {
    const char* name;
    View Operands::* view;
};
constexpr Operand OPERANDS[] = {
    {"a", &Operands::a},
    {"b", &Operands::b},
    {"weight", &Operands::weight},
    {"key_bias", &Operands::key_bias},
    {"value", &Operands::value},
    {"bias", &Operands::bias},
    {"c", &Operands::c},
    {"start", &Operands::start},
    {"stop", &Operands::stop},
    {"mask", &Operands::mask},
    {"seed", nullptr},
    {"rowptr", &Operands::rowptr},
    {"col", &Operands::col},
    {"colptr", &Operands::colptr},
    {"order", &Operands::order},
    {"row", &Operands::row},
    {"packed", &Operands::packed},
};

// The numbers of a call, as `Settings.numbers` in anyscore/call/operands.py lists them.
struct Settings {
    double scale = 1;
    Size groups = 1;
    double dropout = 0;
    Size dropout_period = 1;
    double outer = 0, outer_scale = 0;
    bool diagonal = false, after = false;  // the bias
    int normalizer = 0;  // of `Normalizer`
    double sigmoid_bias = 0;

    static constexpr std::size_t COUNT = 10;
    explicit Settings(const double* numbers)
        : scale(numbers[0]), groups(Size(numbers[1])), dropout(numbers[2]), dropout_period(Size(numbers[3])),
          outer(numbers[4]), outer_scale(numbers[5]), diagonal(numbers[6] != 0), after(numbers[7] != 0),
          normalizer(int(numbers[8])), sigmoid_bias(numbers[9]) {}
};

// What forward gives; output is missing where there are no values, scores where nobody asks for them.
struct Outputs {
    Output output, stats, scores;
};

// What forward gave, and the gradients of that. Scores spare those of a call without edges from being computed again, and
// where there are no more than TILE keys, the output from being kept.
struct Results {
    View output, stats, scores, d_output, d_stats, d_scores;
};

struct Gradients {
    Output a, b, weight, key_bias, value, bias, c;
};

// One seed for the problems of stats (*lead, 2, T_q), which are counted modulo `period`.
std::vector<Stream> streams(std::uint64_t seed, Size period, const View& stats);

// The parts of a forward and a backward: the call as plain data, where gradients go, and the kernels that run them.
Call describe(Arrays& arrays, Operands& x, const Settings& s, Size queries);
Backward describe_gradients(Arrays& arrays, const Call& call, const Operands& x, const Settings& s, Type sums,
                            Gradients& to);
Kernels find(const std::string& pair, Type sums);
// Keys packed before, for sums of that type, as prepare_keys writes them.
void take_packed(Call& call, Arrays& arrays, View& packed, Type sums);

void forward(const std::string& pair, Operands& x, const Settings& s, Outputs& to, int threads);
void backward(const std::string& pair, Operands& x, const Settings& s, Results& of, Gradients& to, int threads);
// Scores to weights, and the gradients of weights to those of scores, all (..., keys): see sparse.h.
void sparse(int power, const View& s, Output& w, int threads);
void sparse_backward(int power, const View& w, const View& dw, Output& ds, int threads);
// The arrays of a step of location-sensitive attention, as `Energies` in call.h. What is computed outside of the spans
// stays as it is; gradients of keys are added.
struct Located {
    View key, feature, stacked, vector, spans;
};
void energies(const Located& x, Output& to, int threads);
void energies_backward(const Located& x, const View& upstream, Output& d_key, Output& d_feature, Output& d_stacked,
                       Output& d_vector, int threads);
// Packs all keys, or those that are new and stand among rows of b.
void prepare_keys(const std::string& pair, View& b, Output& packed, int threads);
void append_keys(const std::string& pair, View& b, Output& packed, const NewKeys& keys, int threads);

}  // namespace anyscore
