// All gradients, from the statistics m and l of each query. Scores are computed again, tile by tile, or were kept.
//
//     P = exp((S − m) − l)    dP = dO Vᵀ    dS = P ∘ (dP − D + dl) + dscores,  D_i = dO_i · O_i = Σ_j P_ij dP_ij
//
// Where P is a sigmoid, dS = P ∘ (1 − P) ∘ dP + dscores: rows have no sum. An outer function multiplies dS by its
// derivative. The gradient of a bias is dS, summed.
#pragma once

#include "attention/forward.h"

namespace anyscore::ANYSCORE_ISA {

// The parts of d_a and d_weight of each task, which are summed afterwards in a fixed order. A task computes one group
// of problems and one chunk of keys, and owns d_b, d_key_bias and d_value there. If each a has a single part, the
// task writes d_a itself while it is in the cache; then each thread has one buffer.
template <class T> struct Partial {
    Size chunks, queries, padded, diagonals;
    bool is_whole;  // whether each d_a has a single part
    T *d_a, *d_weight;
    const T* delta;  // D
    double* d_diagonals;  // (problems, chunks, diagonals)

    double* of_diagonals(Size n, Size chunk) const { return d_diagonals + (n * chunks + chunk) * diagonals; }
    T* of_a(Size n, Size chunk, int slot) const { return d_a + (is_whole ? slot : n * chunks + chunk) * queries * padded; }
    T* of_weight(Size n, Size chunk) const { return d_weight + (n * chunks + chunk) * padded; }
};

// Returns whether a backward needs P: it does not if only the scores have a gradient.
inline bool needs_weights(const Backward& back) { return back.d_output.data || back.d_stats; }

template <class T> T* address(const Gradient& gradient, Size n, Size i) { return (T*)gradient.data + gradient.at[n] + i; }

// Writes `from` to `to`, or adds it if not is_first.
template <class T> void put(T* to, const T* from, Size n, bool is_first) {
    for (Size d = 0; d < n; d++) to[d] = is_first ? from[d] : to[d] + from[d];
}

// P and dS of a tile, and the gradients that follow from dS. Buffers:
//
//     scores->s             (TILE, TILE)  S, then P with dropout
//     ds                    (TILE, TILE)  dP, then dS
//     scores->outer_slopes  (TILE, TILE)  derivatives of the outer function, if there is one
//     factors               (TILE)        dropout factors of one query
template <class Scorer, class T> class ScoreGradients {
    static constexpr int L = LANES<T>;

public:
    ScoreGradients(Arena& arena, const Call& call)
        : scores(arena, call), values(arena, call), ds(arena.take<T>(TILE * TILE)), factors(arena.take<T>(TILE)) {
        if (call.outer != Outer::NONE) scores->outer_slopes = arena.take<T>(TILE * TILE);
    }

    ANYSCORE_NOINLINE void read_queries(const Tile& tile) {
        scores->queries(tile);
        scores->queries_for_gradients(tile);
    }
    ANYSCORE_NOINLINE void read_keys(const Tile& tile, const KeySets<Scorer, T>& sets) {
        scores->keys(tile, sets);
        scores->keys_for_gradients(tile);
        values.read_values(tile);
    }

    // Writes P, with dropout, to scores->s, and dS to ds, for the queries and keys last read. Adds the gradients of a
    // bias, and to d_bias those of key biases. delta: D of the problem. d_diagonals: the gradient of a bias of
    // diagonals, or null.
    ANYSCORE_NOINLINE void compute(const Tile& tile, const Backward& back, const T* delta, T* d_bias, double* d_diagonals) {
        const Call& call = tile.call;
        if (needs_weights(back) || call.outer != Outer::NONE) scores->compute(tile);  // the same bits as in the forward
        values.read_output(tile, back);
        values.multiply(tile, ds);
        const int keys = tile.keys, end = int(round_up(keys, L));
        const bool of_bias = back.d_bias.data;
        for (int i = 0; i < tile.queries; i++) {
            AttendedColumns attended(tile, i);
            T *p = scores->s + i * TILE, *d = ds + i * TILE;
            weigh(tile, back, i, attended, delta, p, d);
            if (back.d_scores) {
                const T* more = (const T*)back.d_scores + tile.problem * call.scores() + tile.scores_of(i);
                for (int j = attended.from; j < attended.to; j++) d[j] += more[j];
            }
            if (!attended.is_whole(keys)) attended.fill_others(d, keys, T(0));
            if (of_bias && call.bias.after) add_bias(tile, back, i, d, d_diagonals);
            if (call.outer != Outer::NONE) {
                for (int j = 0; j < keys; j++) d[j] *= scores->outer_slopes[i * TILE + j];
                if (!attended.is_whole(keys)) attended.fill_others(d, keys, T(0));
            }
            if (of_bias && !call.bias.after) add_bias(tile, back, i, d, d_diagonals);
            zero(d + keys, end - keys);
            for (int j = 0; j < end; j++) d_bias[j] += d[j];
        }
    }

    // Adds the gradients of a, b and weight, which follow from dS, and overwrites ds.
    void add_gradients(const Tile& tile, T* d_a, T* d_b, T* d_weight) {
        if (scores->has_irregular()) add_irregular(tile, d_a, d_b, d_weight);
        scores->scorer.gradients(tile.queries, tile.keys, ds, d_a, d_b, d_weight);
    }

    ScoresOf<Scorer, T> scores;
    ValueGradients<T> values;
    T* const ds;

private:
    // For query i, turns scores p into P, and dP in d into dS without dscores. Loops cover whole vectors, beyond the
    // last key.
    void weigh(const Tile& tile, const Backward& back, int i, const AttendedColumns& attended, const T* delta, T* p, T* d) {
        const Call& call = tile.call;
        const int keys = tile.keys, end = int(round_up(keys, L));
        if (!needs_weights(back)) return zero(d, keys);
        const Size at = tile.first_query + i, of_most = 2 * tile.problem * call.queries + at;
        const Size of_log_sum = of_most + call.queries;
        const bool is_softmax = call.normalizer == Normalizer::SOFTMAX, drops = call.dropout.rate > 0;
        const T* stats = (const T*)back.stats;
        weights_of(attended, is_softmax, p, stats[of_most], stats[of_log_sum], keys);
        if (drops) {
            dropout_factors(call.dropout, tile.problem, tile.row_of(i), tile.first_key, end, factors);
            for (int j = 0; j < end; j++) d[j] *= factors[j];
        }
        T shift = back.output.data || !back.d_output.data ? -delta[at] : -delta_of_tile(tile, i, attended, p, d);
        if (back.d_stats && is_softmax && attended.from < attended.to) shift += ((const T*)back.d_stats)[of_log_sum];
        if (is_softmax)
            for (int j = 0; j < end; j++) d[j] = p[j] * (d[j] + shift);
        else
            for (int j = 0; j < end; j++) d[j] = p[j] * (1 - p[j]) * (d[j] + shift);
        if (drops)
            for (int j = 0; j < end; j++) p[j] *= factors[j];
    }

    // Returns D of query i if this tile has all its keys: Σ P dP / Σ P, where rounding of log l cancels.
    ANYSCORE_NOINLINE T delta_of_tile(const Tile& tile, int i, const AttendedColumns& attended, T* p, T* d) const {
        if (values.is_nonfinite(i)) return nan<T>();
        if (tile.call.normalizer != Normalizer::SOFTMAX) return T(0);
        const int keys = tile.keys;
        if (!attended.is_whole(keys)) attended.fill_others(d, keys, T(0));
        zero(p + keys, round_up(keys, L) - keys), zero(d + keys, round_up(keys, L) - keys);
        Vector<T> sum{}, of_weights{};
        for (int j = 0; j < keys; j += L) sum += load(p + j) * load(d + j), of_weights += load(p + j);
        const T total = sum_lanes<T>(of_weights);
        return total > 0 ? sum_lanes<T>(sum) / total : sum_lanes<T>(sum);
    }

    // Adds row i of the gradient of a bias: of a matrix, to the result, which no other task writes; of diagonals, to
    // this task's part.
    static void add_bias(const Tile& tile, const Backward& back, int i, const T* d, double* d_diagonals) {
        if (d_diagonals) {
            double* to = d_diagonals + tile.call.queries - 1 - (tile.first_query + i) + tile.first_key;
            for (int j = 0; j < tile.keys; j++) to[j] += double(d[j]);
        } else {
            AttendedColumns attended(tile, i);
            T* to = address<T>(back.d_bias, tile.problem, tile.scores_of(i));
            for (int j = attended.from; j < attended.to; j++) to[j] += d[j];
        }
    }

    ANYSCORE_NOINLINE void add_irregular(const Tile& tile, T* d_a, T* d_b, T* d_weight) {
        const Size padded = scores->padded;
        for (int i = 0; i < tile.queries; i++) {
            AttendedColumns attended(tile, i);
            for (int j = attended.from; j < attended.to; j++) {
                if (!scores->is_irregular(i, j) || !attended.has(j)) continue;
                auto& rows = scores->irregular_rows;
                rows.read(tile.call, tile.problem, tile.first_query + i, tile.key(j), tile.first_key + j);
                rows.gradient(ds[i * TILE + j], Scorer::FACTOR, d_a + i * padded, d_b + j * padded, d_weight);
                ds[i * TILE + j] = 0;
            }
        }
    }

    T* factors;
};

template <class Scorer, class T> class BackwardChunk {
public:
    BackwardChunk(Arena& arena, const Call& call)
        : score_gradients(arena, call), padded(score_gradients.scores->padded), v_padded(score_gradients.values.padded),
          d_b(arena.take<T>(TILE * padded)), d_value(arena.take<T>(TILE * v_padded)), d_bias(arena.take<T>(TILE)),
          low(arena.take<Size>(tiles_of(call.queries))), high(arena.take<Size>(tiles_of(call.queries))) {}

    void run(const Call& call, const Backward& back, const KeySets<Scorer, T>& sets, const Partial<T>& partial, Size n,
             Size chunk, int slot) {
        const Size tiles = sets.tiles.count;
        T *d_a = partial.of_a(n, chunk, slot), *d_weight = partial.of_weight(n, chunk);
        zero(d_a, call.queries * padded);
        zero(d_weight, padded);
        double* d_diagonals = partial.diagonals ? partial.of_diagonals(n, chunk) : nullptr;
        for (Size k = 0; k < partial.diagonals; k++) d_diagonals[k] = 0;
        Tile tile(call, n);
        score_gradients.scores->begin(tile, sets);
        find_spans(tile);
        Size ready = -1;  // first query of the block that the scorer has read
        for (Size t = tiles * chunk / partial.chunks; t < tiles * (chunk + 1) / partial.chunks; t++) {
            tile.move_to_keys(sets.tiles.begin(t), sets.tiles.end(t));
            bool started = false;
            for (Size first = 0; first < call.queries; first += tile.queries) {
                if (first % TILE == 0 && !is_attended(tile, first / TILE)) {
                    tile.queries = remaining(call.queries, first);
                    continue;
                }
                tile.move_to_queries(first);
                if (!tile.is_attended()) continue;
                if (!started) begin_tile(tile, sets);
                started = true;
                if (ready != first) score_gradients.read_queries(tile);
                ready = first;
                score_gradients.compute(tile, back, partial.delta + n * call.queries, d_bias, d_diagonals);
                score_gradients.values.add(tile, back, score_gradients.scores->s, d_value);
                score_gradients.add_gradients(tile, d_a + first * padded, d_b, d_weight);
            }
            finish_tile(tile, back, started);
        }
        for (Size i = 0; partial.is_whole && i < call.queries; i++)
            put_scaled(address<T>(back.d_a, n, i * call.width), d_a + i * padded, score_gradients.scores->weight,
                       Scorer::FACTOR, call.width, true);
    }

private:
    // Finds the keys [low, high) that each TILE of queries attends, so that bounds are not read for every tile of
    // keys.
    void find_spans(Tile& tile) {
        const Call& call = tile.call;
        for (Size first = 0; first < call.queries; first += tile.queries) {
            tile.move_to_queries(first);
            const QueryBounds& bounds = tile.bounds;
            const Size t = first / TILE;
            if (first % TILE == 0) low[t] = call.keys, high[t] = 0;
            if (bounds.low == bounds.high) continue;
            low[t] = bounds.low < low[t] ? bounds.low : low[t];
            high[t] = bounds.high > high[t] ? bounds.high : high[t];
        }
    }
    bool is_attended(const Tile& tile, Size t) const {
        return high[t] > tile.first_key && low[t] < tile.first_key + tile.keys;
    }

    void begin_tile(const Tile& tile, const KeySets<Scorer, T>& sets) {
        score_gradients.read_keys(tile, sets);
        zero(d_b, tile.keys * padded);
        zero(d_value, tile.keys * v_padded);
        zero(d_bias, TILE);
    }

    // Writes the tile's gradients to the results. The first of several problems that share a result writes, others
    // add.
    void finish_tile(const Tile& tile, const Backward& back, bool started) {
        const Size n = tile.problem, j0 = tile.first_key, width = tile.call.width, value_width = tile.call.value_width;
        const int keys = tile.keys;
        T* to_b = address<T>(back.d_b, n, j0 * width);
        T* to_value = value_width ? address<T>(back.d_value, n, j0 * value_width) : nullptr;
        if (back.d_b.is_first[n] && !started) zero(to_b, keys * width);
        if (value_width && back.d_value.is_first[n] && !started) zero(to_value, keys * value_width);
        for (int j = 0; started && j < keys; j++) {
            put_scaled(to_b + j * width, d_b + j * padded, score_gradients.scores->weight, Scorer::FACTOR, width,
                       back.d_b.is_first[n]);
            if (value_width) put(to_value + j * value_width, d_value + j * v_padded, value_width, back.d_value.is_first[n]);
        }
        if (!back.d_key_bias.data) return;
        if (!started) zero(d_bias, keys);
        put(address<T>(back.d_key_bias, n, j0), d_bias, keys, back.d_key_bias.is_first[n]);
    }

    ScoreGradients<Scorer, T> score_gradients;
    Size padded, v_padded;
    T *d_b, *d_value, *d_bias;
    Size *low, *high;
};

}  // namespace anyscore::ANYSCORE_ISA
