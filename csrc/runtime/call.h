// A call as plain data: what calls.cpp makes of arrays, and every kernel takes.
//
// The leading dimensions of a call are flattened to problems, n = 0 … problems − 1. An array says
// for each where its part starts, so broadcasting and grouped heads are numbers here, not copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/pair_list.h"

namespace anyscore {

using Size = std::int64_t;

constexpr int TILE = 64;  // queries, and keys, of a tile

enum class Type { F32, F64, F16, BF16 };

// What a score does with its sum, as anyscore/score/outer.py counts and defines it.
enum class Outer { NONE, TANH, SQRT, LOG1P, ARCOSH, COUNT };

// Rows of unit stride: row i of problem n starts at element at[n] + i · stride.
struct Rows {
    const void* data = nullptr;
    Type type = Type::F32;
    const Size* at = nullptr;
    Size stride = 0;
};

// Key j is attended by query i if start ≤ j < stop; entry i of problem n is data[at[n] + i · stride].
struct Bound {
    const std::int64_t* data = nullptr;
    const Size* at = nullptr;
    Size stride = 0;
};

struct Mask {
    const bool* data = nullptr;
    const Size* at = nullptr;
    Size row = 0, column = 0;
};

// Added to scores: entry (i, j) of problem n is element at[n] + first + i · row + j · column. One number for
// each diagonal has the strides −1 and 1.
struct Bias {
    Rows entries;  // stride: row
    Size first = 0, column = 0;
    bool diagonal = false, after = false;  // after: after the outer function
};

// Which random numbers a problem draws: word 2 and 3 of the counter, and the key, of Philox.
struct Stream {
    std::uint64_t seed = 0, counter = 0;
};

struct Dropout {
    double rate = 0;
    const Stream* streams = nullptr;  // of each problem
};

// What makes weights of the scores s. What a sigmoid subtracts from them is the first of the statistics.
enum class Normalizer {
    SOFTMAX,
    SIGMOID,  // of s + sigmoid_bias
    SIGMOID_OF_KEYS,  // of s + sigmoid_bias − log n, where n keys are attended
};

// The edges of a graph in the place of keys: query i attends the edges rowptr[i] … rowptr[i + 1] − 1, and edge e has
// row col[e] of b, values and key biases; its key may have a term of its own. Those of row j are order[colptr[j]] …
// order[colptr[j + 1] − 1]; `row` has their queries, in that order.
struct Edges {
    const std::int64_t *rowptr = nullptr, *col = nullptr;
    const std::int64_t *colptr = nullptr, *order = nullptr, *row = nullptr;  // for the backward
    Size rows = 0;  // of b
};

struct Call {
    Size problems = 0, queries = 0, keys = 0, width = 0, value_width = 0;
    Edges edges;  // or none; else `keys` counts them, `start` and `stop` are of rowptr, and a bias has one row
    Rows a, b, value;  // value: or none
    Rows c;  // of edges, or none: what is added to the row of b; each problem has its own
    Rows weight;  // one row of `width` each, or none: 1
    Rows key_bias;  // entry j of problem n is element at[n] + j · stride, or none: 0
    Bias bias;  // or none
    Bound start, stop;
    Mask mask;
    double scale = 1;
    Outer outer = Outer::NONE;
    double outer_scale = 0;  // its c
    Normalizer normalizer = Normalizer::SOFTMAX;
    double sigmoid_bias = 0;
    Dropout dropout;
    Rows packed;  // what prepare_keys wrote, or none
    const void* kept = nullptr;  // for a backward: the scores that the forward wrote, or none, then they are computed again
    // Whether a, b and values are bfloat16, and the processor multiplies two such numbers at a time. The output of such
    // a call is bfloat16, and so are the numbers of dO, in whatever type they come.
    bool dots = false;
    // Problems with the same b share what is made of it: key_set[n] numbers it, and
    // first_problem[key set] is one that has it.
    Size key_sets = 0;
    const Size* key_set = nullptr;
    const Size* first_problem = nullptr;

    bool has_terms() const { return c.data; }
    bool is_graph() const { return edges.rowptr; }
    Size scores() const { return is_graph() ? keys : queries * keys; }  // of a problem
};

// What a forward writes, each (problems, queries, …) and C-contiguous.
struct Forward {
    void* output = nullptr;  // (problems, queries, value_width) of `output_type`, or none: no values
    Type output_type = Type::F32;
    // (problems, 2, queries): of the scores of a query the largest, m, and log Σ e^(s − m); of a sigmoid what it subtracts,
    // and 0. Their sum is the log-sum-exp, which would round away the second where the first is large.
    void* stats = nullptr;
    void* scores = nullptr;  // (problems, queries, keys), −∞ where not attended; of a graph (problems, edges); or none
};

// Where the gradients of an array go: row i of problem n at at[n] + i · width, C-contiguous, in the
// type of sums.
struct Gradient {
    void* data = nullptr;
    const Size* at = nullptr;
    const bool* is_first = nullptr;  // of each problem: whether none before it has the same at
};

// The problems in groups: group g holds members[first[g]] … members[first[g + 1] − 1], in order.
struct Groups {
    Size count = 0;
    const Size* first = nullptr;
    const Size* members = nullptr;
};

struct Backward {
    const void* stats = nullptr;
    Rows output, d_output;  // or none: no values; and no output where one tile holds all keys, whose scores are kept
    const void* d_stats = nullptr;  // or none; the largest score has no derivative, and its gradient is not read
    const void* d_scores = nullptr;  // or none
    Gradient d_a, d_b, d_weight, d_key_bias, d_value, d_bias, d_c;
    Groups of_a, of_weight, of_diagonals;  // problems with the same a, weight, and bias of diagonals
    // Problems that share b, key_bias, value or a bias that is a matrix are worked on by one task, in order, so that sums
    // are the same for any number of threads.
    Groups tasks;
};

// Keys of a cache that are new: `count` of them, at most as many as there is room for. They came after `start` others,
// which stand before them, and beyond the room there is they go on at its beginning.
struct NewKeys {
    Size start = 0, count = 0;

    // Calls with the one or two intervals of rows [from, end) where they stand.
    template <class Function> void pieces(Size capacity, Function&& function) const {
        if (!count) return;
        const Size from = start % capacity, end = from + count;
        function(from, end < capacity ? end : capacity);
        if (end > capacity) function(Size(0), end - capacity);
    }
};

// The kernels of one instruction set, for one pair and one type of the sums.
struct Kernels {
    void (*forward)(const Call&, const Forward&, int threads);
    void (*backward)(const Call&, const Backward&, int threads);
    // packed: (keys + 1, width) of each key set, one after the other; of its rows those of new keys are written, and where
    // the others must change with them, those too.
    void (*prepare)(const Call&, void* packed, const NewKeys& keys, int threads);
};

// Weights w of (rows, keys) scores, and gradients: see sparse.h.
struct SparseKernels {
    void (*forward)(int power, const void* s, Size rows, Size keys, void* w, int threads);
    void (*backward)(int power, const void* w, const void* dw, Size rows, Size keys, void* ds, int threads);
};

// A step of location-sensitive attention, and what its gradients need: see energies.h. Arrays are dense; of each item, keys
// [span[0], span[1]) are computed.
struct Energies {
    Size batch = 0, keys = 0, width = 0, features = 0;
    const void *key = nullptr, *feature = nullptr;  // (batch, keys, width), (batch, keys, features)
    const void *stacked = nullptr, *vector = nullptr;  // S (batch, features, width), v (width)
    const std::int64_t* spans = nullptr;  // (batch, 2)
    void* energies = nullptr;  // (batch, keys)
    const void* upstream = nullptr;  // their gradients
    // Of key, to which is added, or none; of feature and stacked; and of vector (batch, width), for each item.
    void *d_key = nullptr, *d_feature = nullptr, *d_stacked = nullptr, *d_vector = nullptr;

    Size start(Size item) const { return spans[2 * item]; }
    Size stop(Size item) const { return spans[2 * item + 1]; }
};

struct EnergyKernels {
    void (*forward)(const Energies&, int threads);
    void (*backward)(const Energies&, int threads);
};

// All of one instruction set and one type of the sums.
struct KernelTable {
    Kernels of[PAIRS];  // by row of pair_list.h
    SparseKernels sparse;
    EnergyKernels energies;
};

}  // namespace anyscore
