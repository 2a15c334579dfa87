// Shared by forward and backward: a tile, the keys that its queries attend, and scores of irregular rows.
#pragma once

#include <cmath>
#include <utility>

#include "runtime/memory.h"
#include "simd/philox.h"
#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// The keys [start, stop) that each query of a block may attend, by the bounds of the call.
struct QueryBounds {
    Size start[TILE], stop[TILE];
    Size low, high;  // the keys [low, high) that the block attends; low = high if it attends none

    // Reads the bounds of up to `count` queries of problem n from `first` on. Returns the number of queries in the
    // block. A block ends before a query that shares no key with earlier ones, as at the end of a packed sequence. A
    // block across that end would compute both sequences' keys for all its queries.
    int read(const Call& call, Size n, Size first, int count) {
        low = call.keys, high = 0;
        for (int i = 0; i < count; i++) {
            start[i] = at(call.start, n, first + i, 0), stop[i] = at(call.stop, n, first + i, call.keys);
            start[i] = start[i] < 0 ? 0 : start[i], stop[i] = stop[i] > call.keys ? call.keys : stop[i];
            if (start[i] >= stop[i]) continue;
            if (low < high && (start[i] >= high || stop[i] <= low)) return i;
            low = start[i] < low ? start[i] : low;
            high = stop[i] > high ? stop[i] : high;
        }
        if (low > high) low = high = 0;
        return count;
    }

private:
    static Size at(const Bound& bound, Size n, Size i, Size otherwise) {
        return bound.data ? bound.data[bound.at[n] + i * bound.stride] : otherwise;
    }
};

// Queries, or rows of keys, of a graph in one task. A task computes them for all problems. The heads of a token are
// near each other, and finding a page of memory may take longer than reading from it.
constexpr int NODES = 32;

// A block of queries and a tile of keys of one problem: the position of a kernel in a call, and the bounds there.
struct Tile {
    const Call& call;
    const Size problem;
    Size first_query = 0, first_key = 0;
    int queries = 0, keys = 0;  // numbers of queries and keys in the tile
    const std::int64_t* index = nullptr;  // for a graph: the rows of these keys in b
    QueryBounds bounds;

    Tile(const Call& call, Size problem) : call(call), problem(problem) {}

    // Returns the queries of a block. Queries of a graph have few keys in common, so each is a block.
    static int block(const Call& call) { return call.is_graph() ? 1 : TILE; }
    // Moves to the block of queries from `first` on, up to a multiple of TILE. QueryBounds::read may end the block
    // earlier. A backward has the same blocks.
    void move_to_queries(Size first) {
        const int most = block(call);
        first_query = first,
        queries = bounds.read(call, problem, first, remaining(call.queries, first, most - int(first % most)));
    }
    // Moves to the tile of keys from `first` on, up to `end`.
    void move_to_keys(Size first, Size end) {
        first_key = first, keys = remaining(end, first);
        if (call.is_graph()) index = call.edges.col + first;
    }

    RowRange queries_of(const Rows& rows, Size width) const { return {rows, problem, first_query, queries, width}; }
    RowRange keys_of(const Rows& rows, Size width) const { return {rows, problem, first_key, keys, width, index}; }
    Size key(int j) const { return index ? index[j] : first_key + j; }
    // scores_of: the offset of query i's scores of this tile in the problem's scores; row_of: the row that dropout
    // counts.
    Size scores_of(int i) const { return row_of(i) * call.keys + first_key; }
    Size row_of(int i) const { return call.is_graph() ? 0 : first_query + i; }

    // Returns the number of leading keys of the tile that contain all keys within bounds; the same in a backward as
    // in its forward.
    int attended_keys() const { return bounds.high - first_key < keys ? int(bounds.high - first_key) : keys; }
    // Returns whether the bounds let any query of the block attend any key of the tile.
    bool is_attended() const { return bounds.high > first_key && bounds.low < first_key + keys; }
};

// The columns of a tile that its query i may attend: [from, to), where the mask allows it.
struct AttendedColumns {
    int from, to;
    const bool* mask;  // mask[j · column] allows column j; null allows all
    Size column;

    AttendedColumns(const Tile& tile, int i) {
        const Call& call = tile.call;
        const int keys = tile.keys;
        Size a = tile.bounds.start[i] - tile.first_key, b = tile.bounds.stop[i] - tile.first_key;
        from = a < 0 ? 0 : a > keys ? keys : int(a), to = b > keys ? keys : b < 0 ? 0 : int(b);
        if (to < from) to = from;
        column = call.mask.column;
        mask = !call.mask.data ? nullptr
                               : call.mask.data + call.mask.at[tile.problem] + (tile.first_query + i) * call.mask.row +
                                     tile.first_key * column;
    }
    bool has(int j) const { return j >= from && j < to && (!mask || mask[j * column]); }
    bool is_whole(int keys) const { return from == 0 && to == keys && !mask; }

    // Writes `otherwise` to x[j] for the columns below `end` that are not attended.
    template <class T> void fill_others(T* x, int end, T otherwise) const {
        for (int j = 0; j < from; j++) x[j] = otherwise;
        for (int j = to; j < end; j++) x[j] = otherwise;
        if (!mask) return;
        for (int j = from; j < to; j++) x[j] = mask[j * column] ? x[j] : otherwise;
    }
};

// Returns whether query i of a block attends any key.
inline bool attends_any(const Tile& tile, int i) {
    const Mask& mask = tile.call.mask;
    const Size from = tile.bounds.start[i], to = tile.bounds.stop[i];
    if (!mask.data || to <= from) return to > from;
    const bool* row = mask.data + mask.at[tile.problem] + (tile.first_query + i) * mask.row;
    for (Size j = from; j < to; j++)
        if (row[j * mask.column]) return true;
    return false;
}

// Returns the number of keys that query i of a block attends.
inline Size attended_keys(const Tile& tile, int i) {
    const Mask& mask = tile.call.mask;
    Size from = tile.bounds.start[i], to = tile.bounds.stop[i], count = 0;
    if (to <= from || !mask.data) return to > from ? to - from : 0;
    const bool* row = mask.data + mask.at[tile.problem] + (tile.first_query + i) * mask.row;
    for (Size j = from; j < to; j++) count += row[j * mask.column];
    return count;
}

// Returns the shift that the sigmoid subtracts from the scores of query i of a block; −∞ if it attends nothing.
template <class T> inline T shift_of(const Tile& tile, int i) {
    Size n = attended_keys(tile, i);
    if (!n) return minus_infinity<T>();
    return T((tile.call.normalizer == Normalizer::SIGMOID_OF_KEYS ? std::log(double(n)) : 0.0) - tile.call.sigmoid_bias);
}

// Returns 1 / (1 + e⁻ˣ); 0 below −LIMIT.
template <class T> ANYSCORE_INLINE T sigmoid(T x) {
    T power = exp_clamped(-x);
    return x < -Exp<T>::LIMIT ? T(0) : 1 / (1 + power);
}

// Replaces the scores s of one query by weights, from its statistics. The rest of the last vector after the keys may
// get anything.
template <class T>
ANYSCORE_NOINLINE void weights_of(const AttendedColumns& attended, bool is_softmax, T* s, T most, T log_sum, int keys) {
    constexpr int L = LANES<T>;
    const int end = int(round_up(keys, L));
    bool poisoned = is_nan(most), empty = bits(most) == bits(minus_infinity<T>());
    T at = poisoned || empty ? T(0) : most;
    if (is_softmax)
        for (int j = 0; j < end; j += L) store(s + j, exp_or_zero<T>(min(load(s + j) - at, fill(T(0))) - log_sum));
    else
        for (int j = 0; j < end; j++) s[j] = sigmoid(s[j] - at);
    if (poisoned || empty)
        for (int j = 0; j < keys; j++) s[j] = poisoned ? nan<T>() : T(0);
    if (!attended.is_whole(keys)) attended.fill_others(s, keys, T(0));
}

// One problem's weight times the scale: `raw`, and `finite`, which is 0 everywhere if any number of it is not finite.
template <class T> struct Weight {
    Weight(Arena& arena, Size padded) : raw(arena.take<T>(padded)), finite(arena.take<T>(padded)) {}

    // Reads the weight of problem n. Returns whether it differs from the last one read.
    bool read_for(const Call& call, Size n, Size padded) {
        Size at = call.weight.data ? call.weight.at[n] : 0;
        if (at == last) return false;
        last = at;
        if (call.weight.data)
            read_row(call.weight, n, 0, call.width, raw);
        else
            for (Size d = 0; d < call.width; d++) raw[d] = T(1);
        for (Size d = 0; d < call.width; d++) raw[d] *= T(call.scale);
        for (Size d = call.width; d < padded; d++) raw[d] = 0;
        has_nonfinite = largest_bits(raw, call.width) >= Bits<T>::INFINITE;
        for (Size d = 0; d < padded; d++) finite[d] = has_nonfinite ? T(0) : raw[d];
        return true;
    }
    T *raw, *finite;
    bool has_nonfinite = false;

private:
    Size last = -1;
};

// Writes factor · weight · from to `to`, or adds it if not is_first. A `from` of 0 counts as 0, even if the weight is
// not finite.
template <class T>
ANYSCORE_NOINLINE void put_scaled(T* to, const T* from, const Weight<T>& weight, T factor, Size width, bool is_first) {
    if (weight.has_nonfinite)
        for (Size d = 0; d < width; d++)
            to[d] = (is_first ? T(0) : to[d]) + (bits(from[d]) << 1 ? factor * weight.raw[d] * from[d] : T(0));
    else if (is_first)
        for (Size d = 0; d < width; d++) to[d] = factor * weight.raw[d] * from[d];
    else
        for (Size d = 0; d < width; d++) to[d] += factor * weight.raw[d] * from[d];
}

// Adds the term of edge e of problem n to its key.
template <class T> ANYSCORE_NOINLINE void add_term(const Call& call, Size n, Size e, T* key) {
    T term[PIECE];
    for (Size d = 0; d < call.width; d += PIECE) {
        const int count = remaining(call.width, d, PIECE);
        read(call.c, call.c.at[n] + e * call.c.stride + d, count, 1, term);
        for (int k = 0; k < count; k++) key[d + k] += term[k];
    }
}

// Reads the keys of a tile as read_tile, with the terms of its edges.
template <class T> ANYSCORE_NOINLINE bool read_tile_of_keys(const Tile& tile, Size padded, T limit, T* x, bool* irregular) {
    const Call& call = tile.call;
    read_rows(tile.keys_of(call.b, call.width), padded, x);
    for (int j = 0; call.has_terms() && j < tile.keys; j++) add_term(call, tile.problem, tile.first_key + j, x + j * padded);
    return mark_irregular(x, tile.keys, padded, limit, irregular);
}

// Scores and gradients by the formula itself, for pairs of rows with an irregular one: not finite, or too large for
// the fast form. Such pairs are rare.
template <class Literal, class T> class IrregularRows {
public:
    IrregularRows(Arena& arena, Size width) : a(arena.take<T>(width)), b(arena.take<T>(width)) {}

    // Reads row i of queries, and row j of keys with the term of edge e. `score` and `gradient` compute this pair of
    // rows.
    void read(const Call& call, Size n, Size i, Size j, Size e) {
        width = call.width;
        read_row(call.a, n, i, width, a), read_row(call.b, n, j, width, b);
        if (call.has_terms()) add_term(call, n, e, b);
    }

    T score(const T* weight) const {
        double sum = 0;
        for (Size d = 0; d < width; d++) sum += double(weight[d] * Literal::value(a[d], b[d]));
        return T(sum);
    }

    // Adds to da, db and dw as a scorer's `gradients` does for one query and key, with ds = g.
    void gradient(T g, T factor, T* da, T* db, T* dw) const {
        for (Size d = 0; d < width; d++) {
            T value, by_a, by_b;
            Literal::gradient(a[d], b[d], value, by_a, by_b);
            if (is_nan(value)) by_a = by_b = value;
            da[d] += g * by_a / factor, db[d] += g * by_b / factor, dw[d] += g * value;
        }
    }

private:
    T *a, *b;
    Size width = 0;
};

}  // namespace anyscore::ANYSCORE_ISA
