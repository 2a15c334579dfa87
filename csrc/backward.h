// All gradients, from the log-sum-exp: scores are computed again, tile by tile.
//
//     P = exp(S − lse)    dP = dO Vᵀ    dS = P ∘ (dP − D + dlse) + dscores,  D_i = dO_i · O_i
//
// Where P is a sigmoid, dS = P ∘ (1 − P) ∘ dP + dscores: rows have no sum.
//
// Under an outer function, dS is multiplied by its derivative. The gradient of a bias is dS, summed.
#pragma once

#include "forward.h"

namespace anyscore::ANYSCORE_ISA {

// A task works on one group of problems and one chunk of keys: it owns d_b, d_key_bias and d_value
// there, and has its own part of d_a and d_weight, which are summed afterwards in a fixed order.
template <class T> struct Partial {
    Size chunks, queries, padded, diagonals;
    T *d_a, *d_weight, *delta;  // delta: D
    double* d_diagonals;  // as many sums as there are terms

    double* of_diagonals(Size n, Size chunk) const { return d_diagonals + (n * chunks + chunk) * diagonals; }
    T* of_a(Size n, Size chunk) const { return d_a + (n * chunks + chunk) * queries * padded; }
    T* of_weight(Size n, Size chunk) const { return d_weight + (n * chunks + chunk) * padded; }
};

template <class Scorer, class T> class BackwardChunk {
    static constexpr int L = LANES<T>;

public:
    BackwardChunk(Arena& arena, const Call& call)
        : scores(arena, call), values(arena, call), padded(scores->padded), v_padded(values.padded),
          d_b(arena.take<T>(TILE * padded)), d_value(arena.take<T>(TILE * v_padded)), ds(arena.take<T>(TILE * TILE)),
          d_bias(arena.take<T>(TILE)), factors(arena.take<T>(TILE)) {
        if (call.outer != Outer::NONE) scores->slopes = arena.take<T>(TILE * TILE);
    }

    // Whether P matters: it does not where only the scores have a gradient.
    static bool needs_weights(const Backward& back) { return back.d_output.data || back.d_lse; }

    void run(const Call& call, const Backward& back, const KeySets<Scorer, T>& sets, const Partial<T>& partial, Size n,
             Size chunk) {
        Size tiles = tiles_of(call.keys);
        T *d_a = partial.of_a(n, chunk), *d_weight = partial.of_weight(n, chunk);
        zero(d_a, call.queries * padded);
        zero(d_weight, padded);
        d_diagonals = partial.diagonals ? partial.of_diagonals(n, chunk) : nullptr;
        for (Size k = 0; k < partial.diagonals; k++) d_diagonals[k] = 0;
        Tile tile(call, n);
        scores->begin(tile, sets);
        Size ready = -1;  // the block of queries that the scorer holds
        for (Size t = tiles * chunk / partial.chunks; t < tiles * (chunk + 1) / partial.chunks; t++) {
            tile.move_to_keys(t * TILE, call.keys);
            bool started = false;
            for (Size first = 0; first < call.queries; first += TILE) {
                tile.move_to_queries(first);
                if (!tile.is_attended()) continue;
                if (!started) begin_tile(tile, sets);
                started = true;
                if (ready != first) {
                    scores->queries(tile);
                    scores->queries_for_gradients(tile);
                    ready = first;
                }
                if (needs_weights(back) || call.outer != Outer::NONE)
                    scores->compute(tile);  // as in the forward, to the last bit
                block(tile, back, partial, d_a + first * padded, d_weight);
            }
            finish_tile(tile, back, started);
        }
    }

private:
    void begin_tile(const Tile& tile, const KeySets<Scorer, T>& sets) {
        scores->keys(tile, sets);
        scores->keys_for_gradients(tile);
        values.read_values(tile);
        zero(d_b, tile.keys * padded);
        zero(d_value, tile.keys * v_padded);
        zero(d_bias, TILE);
    }

    // d_a: of the block of queries.
    void block(const Tile& tile, const Backward& back, const Partial<T>& partial, T* d_a, T* d_weight) {
        const Call& call = tile.call;
        const Size n = tile.problem, first = tile.first_query;
        const int count = tile.queries, keys = tile.keys, end = int(round_up(keys, L));
        Size at = n * call.queries + first;
        values.read_output(tile, back);
        values.multiply(tile, ds);
        const bool is_softmax = call.normalizer == Normalizer::SOFTMAX, has_irregular = scores->has_irregular();
        for (int i = 0; i < count; i++) {
            T *p = scores->s + i * TILE, *d = ds + i * TILE;
            AttendedColumns attended(tile, i);
            if (needs_weights(back)) weights_of(attended, is_softmax, p, ((const T*)back.lse)[at + i], keys);
            T shift = -partial.delta[at + i];
            if (back.d_lse && is_softmax && attended.from < attended.to) shift += ((const T*)back.d_lse)[at + i];
            bool drops = call.dropout.rate > 0;
            if (drops) dropout_factors(call.dropout, n, first + i, tile.first_key, factors);
            if (!needs_weights(back)) {
                for (int j = 0; j < keys; j++) d[j] = 0;
            } else {
                if (drops)
                    for (int j = 0; j < keys; j++) d[j] *= factors[j];
                if (is_softmax)
                    for (int j = 0; j < keys; j++) d[j] = p[j] * (d[j] + shift);
                else
                    for (int j = 0; j < keys; j++) d[j] = p[j] * (1 - p[j]) * (d[j] + shift);
                if (drops)
                    for (int j = 0; j < keys; j++) p[j] *= factors[j];
            }
            if (back.d_scores) {
                const T* more = (const T*)back.d_scores + (at + i) * call.keys + tile.first_key;
                for (int j = 0; j < keys; j++) d[j] += more[j];
            }
            const bool of_bias = back.d_bias.data;
            if (!attended.is_whole(keys)) attended.fill_others(d, keys, T(0));
            if (of_bias && call.bias.after) add_bias(tile, back, i, d);
            if (call.outer != Outer::NONE) {
                for (int j = 0; j < keys; j++) d[j] *= scores->slopes[i * TILE + j];
                if (!attended.is_whole(keys)) attended.fill_others(d, keys, T(0));
            }
            if (of_bias && !call.bias.after) add_bias(tile, back, i, d);
            zero(d + keys, end - keys);
            for (int j = 0; j < keys; j++) d_bias[j] += d[j];
            if (has_irregular)
                for (int j = attended.from; j < attended.to; j++)
                    if (scores->is_irregular(i, j) && attended.has(j)) {
                        scores->irregular_rows.gradient(tile, i, j, d[j], Scorer::FACTOR, d_a + i * padded, d_b + j * padded,
                                                        d_weight);
                        d[j] = 0;
                    }
        }
        values.add(tile, back, scores->s, d_value);
        scores->scorer.gradients(count, keys, ds, d_a, d_b, d_weight);
    }

    // The gradient of a matrix goes to its place, which no other task has; of diagonals, to this task's part.
    void add_bias(const Tile& tile, const Backward& back, int i, const T* d) {
        const Size first = tile.first_query + i;
        if (d_diagonals) {
            double* to = d_diagonals + tile.call.queries - 1 - first + tile.first_key;
            for (int j = 0; j < tile.keys; j++) to[j] += double(d[j]);
        } else {
            T* to = place(back.d_bias, tile.problem, first * tile.call.keys + tile.first_key);
            for (int j = 0; j < tile.keys; j++) to[j] += d[j];
        }
    }

    // What the tile gives goes to its place: the first problem there writes, others add.
    void finish_tile(const Tile& tile, const Backward& back, bool started) {
        const Size n = tile.problem, j0 = tile.first_key, width = tile.call.width, value_width = tile.call.value_width;
        const int keys = tile.keys;
        T* to_b = place(back.d_b, n, j0 * width);
        T* to_value = value_width ? place(back.d_value, n, j0 * value_width) : nullptr;
        if (back.d_b.is_first[n] && !started) zero(to_b, keys * width);
        if (value_width && back.d_value.is_first[n] && !started) zero(to_value, keys * value_width);
        for (int j = 0; started && j < keys; j++) {
            put_scaled(to_b + j * width, d_b + j * padded, scores->weight, Scorer::FACTOR, width, back.d_b.is_first[n]);
            if (value_width) put(to_value + j * value_width, d_value + j * v_padded, value_width, back.d_value.is_first[n]);
        }
        if (!back.d_key_bias.data) return;
        if (!started) zero(d_bias, keys);
        put(place(back.d_key_bias, n, j0), d_bias, keys, back.d_key_bias.is_first[n]);
    }

    static T* place(const Gradient& gradient, Size n, Size i) { return (T*)gradient.data + gradient.at[n] + i; }

    static void put(T* to, const T* from, Size n, bool is_first) {
        if (is_first)
            for (Size d = 0; d < n; d++) to[d] = from[d];
        else
            for (Size d = 0; d < n; d++) to[d] += from[d];
    }

    ScoresOf<Scorer, T> scores;
    ValueGradients<T> values;
    Size padded, v_padded;
    T *d_b, *d_value, *ds, *d_bias, *factors;
    double* d_diagonals = nullptr;
};

}  // namespace anyscore::ANYSCORE_ISA
