// All gradients, from the log-sum-exp: scores are computed again, tile by tile.
//
//     P = exp(S − lse)    dP = dO Vᵀ    dS = P ∘ (dP − D + dlse),  D_i = dO_i · O_i
#pragma once

#include "forward.h"

namespace anyscore::ANYSCORE_ISA {

// A task works on one group of problems and one chunk of keys: it owns d_b, d_key_bias and d_value
// there, and has its own part of d_a and d_weight, which are summed afterwards in a fixed order.
template <class T> struct Partial {
    Size chunks, queries, padded;
    T *d_a, *d_weight, *delta;  // delta: D

    T* of_a(Size n, Size chunk) const { return d_a + (n * chunks + chunk) * queries * padded; }
    T* of_weight(Size n, Size chunk) const { return d_weight + (n * chunks + chunk) * padded; }
};

template <class Scorer, class T> class BackwardChunk {
    static constexpr int L = LANES<T>;

public:
    BackwardChunk(Arena& arena, const Call& call)
        : tile(arena, call), padded(tile.padded), v_padded(round_up(call.value_width, L)),
          v_rows(arena.take<T>(TILE * v_padded)), v_columns(arena.take<T>(v_padded * TILE)),
          d_output(arena.take<T>(TILE * v_padded)), d_b(arena.take<T>(TILE * padded)),
          d_value(arena.take<T>(TILE * v_padded)), ds(arena.take<T>(TILE * TILE)), d_bias(arena.take<T>(TILE)),
          factors(arena.take<T>(TILE)) {}

    void run(const Call& call, const Backward& back, const KeySets<Scorer, T>& sets, const Partial<T>& partial,
             Size n, Size chunk) {
        Size tiles = tiles_of(call.keys);
        T *d_a = partial.of_a(n, chunk), *d_weight = partial.of_weight(n, chunk);
        zero(d_a, call.queries * padded);
        zero(d_weight, padded);
        tile.begin(call, sets, n);
        bool few = call.queries <= FEW;  // scores as in the forward, to the last bit
        Size ready = -1;  // the block of queries that the scorer holds
        for (Size t = tiles * chunk / partial.chunks; t < tiles * (chunk + 1) / partial.chunks; t++) {
            Size j0 = t * TILE;
            int keys = left_of(call.keys, j0);
            bool started = false;
            for (Size first = 0; first < call.queries; first += TILE) {
                int count = left_of(call.queries, first);
                Spans spans(call, n, first, count);
                if (spans.high <= j0 || spans.low >= j0 + keys) continue;
                if (!started) begin_tile(call, sets, n, j0, keys);
                started = true;
                if (ready != first) {
                    tile.queries(call, n, first, count);
                    tile.scorer.queries(tile.query, count);
                    if (few) tile.scorer.few_queries(tile.query, count);
                    ready = first;
                }
                if (few)
                    tile.few_compute(call, spans, n, first, count, j0, keys);
                else
                    tile.compute(call, spans, n, first, count, j0, keys);
                block(call, back, partial, spans, n, first, count, j0, keys, d_a, d_weight);
            }
            finish_tile(call, back, n, j0, keys, started);
        }
    }

private:
    void begin_tile(const Call& call, const KeySets<Scorer, T>& sets, Size n, Size j0, int keys) {
        if (call.queries <= FEW) {
            tile.few_keys(call, n, j0, keys);
            tile.scorer.keys(tile.key, keys);
        } else {
            tile.keys(call, sets, n, j0, keys);
        }
        for (int j = 0; j < keys; j++) {
            read_row(call.value, n, j0 + j, call.value_width, v_rows + j * v_padded);
            for (Size d = call.value_width; d < v_padded; d++) v_rows[j * v_padded + d] = 0;
        }
        zero(v_rows + keys * v_padded, (round_up(keys, L) - keys) * v_padded);
        for (Size d = 0; d < v_padded; d += L)
            for (int j = 0; j < keys; j += L)
                transpose_square(v_rows + j * v_padded + d, v_padded, v_columns + d * TILE + j, TILE);
        zero(d_b, keys * padded);
        zero(d_value, keys * v_padded);
        zero(d_bias, TILE);
    }

    void block(const Call& call, const Backward& back, const Partial<T>& partial, const Spans& spans, Size n,
               Size first, int count, Size j0, int keys, T* d_a, T* d_weight) {
        int end = int(round_up(keys, L));
        Size at = n * call.queries + first;
        bool odd_output[TILE];
        bool any_odd_output = read_tile(back.d_output, n, first, count, call.value_width, v_padded,
                                        largest_finite<T>(), d_output, odd_output);
        for (int i = 0; i < count; i++) zero(ds + i * TILE, end);
        gemm(ds, TILE, d_output, v_padded, 1, v_columns, TILE, count, end, v_padded);
        bool has_odd = tile.any_odd_query || tile.any_odd_key;
        for (int i = 0; i < count; i++) {
            T *p = tile.s + i * TILE, *d = ds + i * TILE;
            Part part(call, spans, n, first, i, j0, keys);
            weights_of(part, p, ((const T*)back.lse)[at + i], keys);
            T shift = -partial.delta[at + i];
            if (back.d_lse && part.from < part.to) shift += ((const T*)back.d_lse)[at + i];
            if (call.dropout.rate > 0) {
                dropout_factors(call.dropout, n, first + i, j0, factors);
                for (int j = 0; j < keys; j++) d[j] = p[j] * (d[j] * factors[j] + shift);
                for (int j = 0; j < keys; j++) p[j] *= factors[j];
            } else {
                for (int j = 0; j < keys; j++) d[j] = p[j] * (d[j] + shift);
            }
            if (!part.is_whole(keys)) part.mask(d, keys, T(0));
            zero(d + keys, end - keys);
            for (int j = 0; j < keys; j++) d_bias[j] += d[j];
            if (has_odd)
                for (int j = part.from; j < part.to; j++)
                    if ((tile.odd_query[i] || tile.odd_key[j]) && part.has(j)) {
                        tile.odd_rows.gradient(call, n, first + i, j0 + j, d[j], Scorer::FACTOR,
                                               d_a + (first + i) * padded, d_b + j * padded, d_weight);
                        d[j] = 0;
                    }
        }
        gemm(d_value, v_padded, tile.s, 1, TILE, d_output, v_padded, keys, v_padded, count);
        if (any_odd_output)
            for (int i = 0; i < count; i++) {
                if (!odd_output[i]) continue;
                Part part(call, spans, n, first, i, j0, keys);
                T* row = d_output + i * v_padded;
                read_row(back.d_output, n, first + i, call.value_width, row);
                for (int j = part.from; j < part.to; j++)
                    for (Size d = 0; part.has(j) && d < call.value_width; d++)
                        d_value[j * v_padded + d] += tile.s[i * TILE + j] * row[d];
            }
        tile.scorer.gradients(count, keys, ds, d_a + first * padded, d_b, d_weight);
    }

    // What the tile gives goes to its place: the first problem there writes, others add.
    void finish_tile(const Call& call, const Backward& back, Size n, Size j0, int keys, bool started) {
        T* to_b = place(back.d_b, n, j0 * call.width);
        T* to_value = place(back.d_value, n, j0 * call.value_width);
        if (back.d_b.is_first[n]) zero(to_b, keys * call.width);
        if (back.d_value.is_first[n] && !started) zero(to_value, keys * call.value_width);
        for (int j = 0; started && j < keys; j++) {
            add_scaled(to_b + j * call.width, d_b + j * padded, tile.weight, Scorer::FACTOR, call.width);
            put(to_value + j * call.value_width, d_value + j * v_padded, call.value_width, back.d_value.is_first[n]);
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

    TileScores<Scorer, T> tile;
    Size padded, v_padded;
    T *v_rows, *v_columns, *d_output, *d_b, *d_value, *ds, *d_bias, *factors;
};

}  // namespace anyscore::ANYSCORE_ISA
