// The functions of the core for Python (module.cpp) and XLA (xla.cpp): arrays in, kernels run.
//
// Arrays may lack leading dimensions of 1. Errors raise std::invalid_argument before any work.
#pragma once

#include <string>
#include <vector>

#include "bindings/arrays.h"

namespace anyscore {

// The arrays of a call, as `Operands` in anyscore/call/operands.py; an absent array has given = false.
struct Operands {
    View a, b, weight, key_bias, value, bias, c, start, stop, mask, rowptr, col, colptr, order, row, origin, packed;
    std::vector<Stream> streams{};  // one for each problem, if there is dropout
};

// The operands by name, in Python's order. Python passes the seed as a number, not as an array.
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
    {"origin", &Operands::origin},
    {"packed", &Operands::packed},
};

// The numbers of a call, as `Settings.numbers` in anyscore/call/operands.py lists them.
struct Settings {
    double scale = 1;
    Size groups = 1;
    double dropout = 0;
    Size dropout_period = 1;
    double outer = 0, outer_scale = 0;
    bool diagonal = false, after = false;  // of the bias
    int normalizer = 0;  // a value of `Normalizer`
    double sigmoid_bias = 0;

    static constexpr std::size_t COUNT = 10;
    explicit Settings(const double* numbers)
        : scale(numbers[0]), groups(Size(numbers[1])), dropout(numbers[2]), dropout_period(Size(numbers[3])),
          outer(numbers[4]), outer_scale(numbers[5]), diagonal(numbers[6] != 0), after(numbers[7] != 0),
          normalizer(int(numbers[8])), sigmoid_bias(numbers[9]) {}
};

// The results of a forward; output is absent without values, scores unless they are asked for.
struct Outputs {
    Output output, stats, scores;
};

// The results of a forward, and their gradients. For a call without edges, scores save computing them again; with at
// most TILE keys they also replace the output.
struct Results {
    View output, stats, scores, d_output, d_stats, d_scores;
};

struct Gradients {
    Output a, b, weight, key_bias, value, bias, c;
};

// Returns one stream for each problem, from one seed. Problems are counted modulo `period`.
std::vector<Stream> streams(std::uint64_t seed, Size period, Size problems);
// Returns one stream for each problem of stats (*lead, 2, T_q). origin: (2,), the first query and key; or absent.
std::vector<Stream> streams(std::uint64_t seed, Size period, const View& stats, View& origin);

// The parts of a forward and a backward: the call as plain data, the destinations of its gradients, and its kernels.
Call describe(Arrays& arrays, Operands& x, const Settings& s, Size queries, Type sums);
Backward describe_gradients(Arrays& arrays, const Call& call, const Operands& x, const Settings& s, Type sums,
                            Gradients& to);
Kernels find(const std::string& pair, Type sums);
// Adds packed keys, as prepare_keys writes them, to a call with this type of the sums.
void take_packed(Call& call, Arrays& arrays, View& packed, Type sums);

void forward(const std::string& pair, Operands& x, const Settings& s, Outputs& to, int threads);
void backward(const std::string& pair, Operands& x, const Settings& s, Results& of, Gradients& to, int threads);
// Writes weights from scores, and the gradients of scores from those of weights, all (..., keys): see sparse.h.
void sparse(int power, const View& s, Output& w, int threads);
void sparse_backward(int power, const View& w, const View& dw, Output& ds, int threads);
// The arrays of a step of location-sensitive attention, as `Energies` in call.h. Results outside of the spans stay as
// they are; gradients of keys are added.
struct EnergyOperands {
    View key, feature, stacked, vector, spans;
};
void energies(const EnergyOperands& x, Output& to, int threads);
void energies_backward(const EnergyOperands& x, const View& upstream, Output& d_key, Output& d_feature, Output& d_stacked,
                       Output& d_vector, int threads);
// prepare_keys packs all keys b; append_keys packs new keys, which are already rows of b.
void prepare_keys(const std::string& pair, View& b, Output& packed, int threads);
void append_keys(const std::string& pair, View& b, Output& packed, const NewKeys& keys, int threads);

}  // namespace anyscore
