// A call as plain data: calls.cpp builds it from arrays, and every kernel reads it.
//
// The leading dimensions of a call are flattened to problems, n = 0 … problems − 1. Each array has an offset for
// every problem, so broadcasting and grouped heads are offsets, not copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/pair_list.h"

namespace anyscore {

using Size = std::int64_t;

constexpr int TILE = 64;  // queries, and keys, of a tile

enum class Type { F32, F64, F16, BF16 };

// The outer function of a score, which follows its sum: numbered and defined as in anyscore/score/outer.py. OWN is of
// a formula.
enum class Outer { NONE, TANH, SQRT, LOG1P, ARCOSH, OWN };

// Replaces `count` numbers x, of the type of the sums, by φ(x), and writes dφ/dx to slopes, if these are not null.
using OwnOuter = void (*)(void* x, void* slopes, int count);

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

// A bias, added to scores: entry (i, j) of problem n is element at[n] + first + i · row + j · column. A bias of one
// number for each diagonal has the strides −1 and 1.
struct Bias {
    Rows entries;  // the stride is `row`
    Size first = 0, column = 0;
    bool diagonal = false, after = false;  // after: added after the outer function, else before
};

// The random numbers of a problem: the key, and words 2 and 3 of the counter, of Philox. A call may be a block of a
// longer one: its first query and its first key have these numbers there. The first key is a multiple of 4.
struct Stream {
    std::uint64_t seed = 0, counter = 0;
    Size first_query = 0, first_key = 0;
};

struct Dropout {
    double rate = 0;
    const Stream* streams = nullptr;  // one for each problem
};

// The function from scores s to weights. The first of the statistics is the shift that a sigmoid subtracts from s.
enum class Normalizer {
    SOFTMAX,
    SIGMOID,  // of s + sigmoid_bias
    SIGMOID_OF_KEYS,  // of s + sigmoid_bias − log n, where n keys are attended
};

// The edges of a graph, which replace keys. Query i attends the edges rowptr[i] … rowptr[i + 1] − 1. Edge e has row
// col[e] of b, values and key biases, and may add a term of its own to its key. Row j has the edges order[colptr[j]]
// … order[colptr[j + 1] − 1]; `row` lists their queries in that order.
struct Edges {
    const std::int64_t *rowptr = nullptr, *col = nullptr;
    const std::int64_t *colptr = nullptr, *order = nullptr, *row = nullptr;  // read by the backward alone
    Size rows = 0;  // of b
};

struct Call {
    Size problems = 0, queries = 0, keys = 0, width = 0, value_width = 0;
    Edges edges;  // or none. For a graph `keys` counts edges, start and stop are of rowptr, and a bias has one row
    Rows a, b, value;  // value may be none
    Rows c;  // the terms of edges, which are added to rows of b; or none. Each problem has its own
    Rows weight;  // one row of `width` for each problem; none counts as 1
    Rows key_bias;  // entry j of problem n is element at[n] + j · stride; none counts as 0
    Bias bias;  // or none
    Bound start, stop;
    Mask mask;
    double scale = 1;
    Outer outer = Outer::NONE;
    double outer_scale = 0;  // the c of the outer function
    OwnOuter own_outer = nullptr;
    Normalizer normalizer = Normalizer::SOFTMAX;
    double sigmoid_bias = 0;
    Dropout dropout;
    Rows packed;  // keys packed by `prepare`, or none
    // In a backward: the scores that the forward wrote; or none, and scores are computed again.
    const void* kept = nullptr;
    // Whether a, b and values are bfloat16, and the processor multiplies two such numbers at a time. Then the output
    // is bfloat16 too, and dO holds bfloat16 numbers in any type.
    bool dots = false;
    // Problems with the same b form a key set, and share its ranges and panels. Problem n has the number key_set[n],
    // and first_problem[set] is one problem of a key set.
    Size key_sets = 0;
    const Size* key_set = nullptr;
    const Size* first_problem = nullptr;

    bool has_terms() const { return c.data; }
    bool is_graph() const { return edges.rowptr; }
    Size scores() const { return is_graph() ? keys : queries * keys; }  // of one problem
};

// The results of a forward, each (problems, queries, …) and C-contiguous.
struct Forward {
    void* output = nullptr;  // (problems, queries, value_width) of `output_type`; none if the call has no values
    Type output_type = Type::F32;
    // (problems, 2, queries): m, the largest score of a query, and log Σ e^(s − m); for a sigmoid its shift, and 0.
    // Their sum is the log-sum-exp, which as one number would round the second away where m is large.
    void* stats = nullptr;
    void* scores = nullptr;  // (problems, queries, keys), −∞ where not attended; for a graph (problems, edges); or none
};

// The gradient of an array, C-contiguous, in the type of the sums: row i of problem n starts at at[n] + i · width.
struct Gradient {
    void* data = nullptr;
    const Size* at = nullptr;
    const bool* is_first = nullptr;  // of each problem: whether no earlier problem has the same offset
};

// The problems in groups: group g holds members[first[g]] … members[first[g + 1] − 1], in order.
struct Groups {
    Size count = 0;
    const Size* first = nullptr;
    const Size* members = nullptr;
};

struct Backward {
    const void* stats = nullptr;
    // None if the call has no values; output is none too if scores are kept and one tile holds all keys.
    Rows output, d_output;
    const void* d_stats = nullptr;  // or none; the gradient of m is not read, as m has no derivative
    const void* d_scores = nullptr;  // or none
    Gradient d_a, d_b, d_weight, d_key_bias, d_value, d_bias, d_c;
    Groups of_a, of_weight, of_diagonals;  // problems with the same a, weight, and bias of diagonals
    // One task works, in order, on problems that share b, key_bias, value or a matrix of biases. So sums are the same
    // for any number of threads.
    Groups tasks;
};

// The new keys of a cache: `count` of them, at most its capacity, after `start` earlier ones. A position beyond the
// capacity wraps around to the beginning.
struct NewKeys {
    Size start = 0, count = 0;

    // Calls function(from, end) for the one or two intervals of rows that hold new keys.
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
    // packed: (key_sets, keys + 1, width). Writes the rows of new keys; all rows of a key set, if new keys change its
    // range.
    void (*prepare)(const Call&, void* packed, const NewKeys& keys, int threads);
};

// Weights w from scores (rows, keys), and gradients: see sparse.h.
struct SparseKernels {
    void (*forward)(int power, const void* s, Size rows, Size keys, void* w, int threads);
    void (*backward)(int power, const void* w, const void* dw, Size rows, Size keys, void* ds, int threads);
};

// A step of location-sensitive attention and its gradients: see energies.h. Arrays are dense. Each item computes keys
// [span[0], span[1]).
struct Energies {
    Size batch = 0, keys = 0, width = 0, features = 0;
    const void *key = nullptr, *feature = nullptr;  // (batch, keys, width), (batch, keys, features)
    const void *stacked = nullptr, *vector = nullptr;  // S (batch, features, width), v (width)
    const std::int64_t* spans = nullptr;  // (batch, 2)
    void* energies = nullptr;  // (batch, keys)
    const void* upstream = nullptr;  // gradients of the energies
    // Gradients of key, which are added to it, or none; of feature and stacked; and of vector, (batch, width), one
    // row for each item.
    void *d_key = nullptr, *d_feature = nullptr, *d_stacked = nullptr, *d_vector = nullptr;

    Size start(Size item) const { return spans[2 * item]; }
    Size stop(Size item) const { return spans[2 * item + 1]; }
};

struct EnergyKernels {
    void (*forward)(const Energies&, int threads);
    void (*backward)(const Energies&, int threads);
};

// All kernels of one instruction set and one type of the sums.
struct KernelTable {
    Kernels of[PAIRS];  // in the order of pair_list.h
    SparseKernels sparse;
    EnergyKernels energies;
};

}  // namespace anyscore
