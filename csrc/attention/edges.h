// The gradients of attention over the edges of a graph, in two passes, so that every sum has one owner and one order.
//
//     pass  class           loops over                   computes
//     1     QueriesOfGraph  queries                      da; P and dS of each edge, which it keeps; dc of edges with terms
//     2     KeysOfGraph     rows of keys, and their      db and dV, from the kept P and dS
//                           edges in `order`
//
// Where edges have terms, db is the sum of dc over the edges of a row.
#pragma once

#include "attention/backward.h"

namespace anyscore::ANYSCORE_ISA {

// Problems whose P and dS are kept at a time.
constexpr Size PROBLEMS_AT_ONCE = 8;

// P, with dropout, and dS of an edge.
template <class T> struct EdgeGradient {
    T p, ds;
};

template <class Scorer, class T> class QueriesOfGraph {
public:
    QueriesOfGraph(Arena& arena, const Call& call)
        : score_gradients(arena, call), padded(score_gradients.scores->padded), d_a(arena.take<T>(padded)),
          d_keys(arena.take<T>(TILE * padded)), d_bias(arena.take<T>(TILE)) {}

    // Computes queries [first, first + NODES) of problem n. d_weight: the gradient of the weight from these queries.
    void run(const Call& call, const Backward& back, const KeySets<Scorer, T>& sets, Size n, Size first, const T* delta,
             EdgeGradient<T>* edge_gradients, T* d_weight) {
        Tile tile(call, n);
        score_gradients.scores->begin(tile, sets);
        zero(d_weight, padded);
        for (Size i = first, end = first + remaining(call.queries, first, NODES); i < end; i++) {
            tile.move_to_queries(i);
            zero(d_a, padded);
            if (tile.bounds.low < tile.bounds.high) score_gradients.read_queries(tile);
            for (Size e = tile.bounds.low; e < tile.bounds.high; e += TILE) {
                tile.move_to_keys(e, tile.bounds.high);
                score_gradients.read_keys(tile, sets);
                score_gradients.compute(tile, back, delta, d_bias, nullptr);
                AttendedColumns attended(tile, 0);
                for (int j = attended.from; j < attended.to; j++)
                    edge_gradients[e + j] = {score_gradients.scores->s[j], score_gradients.ds[j]};
                if (call.has_terms()) zero(d_keys, tile.keys * padded);
                score_gradients.add_gradients(tile, d_a, d_keys, d_weight);
                for (int j = attended.from; call.has_terms() && j < attended.to; j++)
                    put_scaled(address<T>(back.d_c, n, (e + j) * call.width), d_keys + j * padded,
                               score_gradients.scores->weight, Scorer::FACTOR, call.width, true);
            }
            put_scaled(address<T>(back.d_a, n, i * call.width), d_a, score_gradients.scores->weight, Scorer::FACTOR,
                       call.width, back.d_a.is_first[n]);
        }
    }

private:
    ScoreGradients<Scorer, T> score_gradients;
    Size padded;
    T *d_a, *d_keys, *d_bias;  // d_keys: used for terms alone; the other pass computes d_b
};

template <class Scorer, class T> class KeysOfGraph {
    static constexpr int L = LANES<T>;

public:
    KeysOfGraph(Arena& arena, const Call& call)
        : padded(round_up(call.width, L)), v_padded(round_up(call.value_width, L)), scorer(arena, call),
          weight(arena, padded), irregular_rows(arena, call.width), query(arena.take<T>(TILE * padded)),
          key(arena.take<T>(padded)), d_output(arena.take<T>(TILE * v_padded)), p(arena.take<T>(TILE)),
          ds(arena.take<T>(TILE * TILE)), d_b(arena.take<T>(padded)), d_value(arena.take<T>(v_padded)),
          unused(arena.take<T>((TILE + 1) * padded)), range(arena.take<T>(Scorer::Range::size(padded))),
          workspace(arena.take<T>((TILE + 2) * padded)) {}

    // Computes rows of keys [first, first + NODES) of problem n.
    void run(const Call& call, const Backward& back, const KeySets<Scorer, T>& sets, Size n, Size first,
             const EdgeGradient<T>* edge_gradients) {
        bool is_new = weight.read_for(call, n, padded);
        scorer.begin(weight.finite, is_new, sets.range(call, n, range, workspace));
        zero(ds, TILE * TILE);
        for (Size j = first, end = first + remaining(call.edges.rows, first, NODES); j < end; j++) {
            zero(d_b, padded), zero(d_value, v_padded);
            T d_bias = 0;
            if (call.edges.colptr[j] < call.edges.colptr[j + 1] && !call.has_terms()) {
                is_irregular_key = read_tile({call.b, n, j, 1, call.width}, padded, Scorer::limit(), key, &is_irregular_key);
                scorer.keys(key, 1);
            }
            for (Size e = call.edges.colptr[j]; e < call.edges.colptr[j + 1]; e += TILE)
                d_bias += add(call, back, n, j, e, remaining(call.edges.colptr[j + 1], e), edge_gradients);
            if (T* to = address<T>(back.d_b, n, j * call.width); call.has_terms())
                put(to, d_b, call.width, back.d_b.is_first[n]);
            else
                put_scaled(to, d_b, weight, Scorer::FACTOR, call.width, back.d_b.is_first[n]);
            if (call.value_width)
                put(address<T>(back.d_value, n, j * call.value_width), d_value, call.value_width, back.d_value.is_first[n]);
            if (back.d_key_bias.data) put(address<T>(back.d_key_bias, n, j), &d_bias, 1, back.d_key_bias.is_first[n]);
        }
    }

private:
    // Adds the gradients from `count` edges of row j, from e on in the order of keys. Returns the sum of their dS.
    T add(const Call& call, const Backward& back, Size n, Size j, Size e, int count, const EdgeGradient<T>* edge_gradients) {
        const std::int64_t *order = call.edges.order + e, *queries = call.edges.row + e;
        T d_bias = 0;
        for (int i = 0; i < count; i++) {
            p[i] = edge_gradients[order[i]].p, ds[i * TILE] = edge_gradients[order[i]].ds;
            d_bias += ds[i * TILE];
        }
        if (call.value_width && back.d_output.data) add_values(call, back, n, {queries, count});
        if (call.has_terms())
            add_terms(call, back, n, {order, count});
        else
            add_keys(call, n, j, {queries, count});
        return d_bias;
    }

    struct IndexList {
        const std::int64_t* index;
        int count;
    };

    // Adds dc of these edges to d_b.
    void add_terms(const Call& call, const Backward& back, Size n, IndexList edges) {
        for (int i = 0; i < edges.count; i++) {
            const T* row = address<T>(back.d_c, n, edges.index[i] * call.width);
            for (Size d = 0; d < call.width; d++) d_b[d] += row[d];
        }
    }

    // Adds the gradients of row j from these queries to d_b.
    void add_keys(const Call& call, Size n, Size j, IndexList of) {
        const int count = of.count;
        bool irregular[TILE];
        bool any = read_tile({call.a, n, 0, count, call.width, of.index}, padded, Scorer::limit(), query, irregular);
        T *unused_a = unused, *unused_weight = unused + TILE * padded;
        for (int i = 0; (any || is_irregular_key || weight.has_nonfinite) && i < count; i++) {
            if (!irregular[i] && !is_irregular_key && !weight.has_nonfinite) continue;
            irregular_rows.read(call, n, of.index[i], j, 0);
            irregular_rows.gradient(ds[i * TILE], Scorer::FACTOR, unused_a, d_b, unused_weight);
            ds[i * TILE] = 0;
        }
        scorer.gradient_queries(query, count);
        scorer.gradients(count, 1, ds, unused_a, d_b, unused_weight);
    }

    // Adds Pᵀ dO to d_value.
    void add_values(const Call& call, const Backward& back, Size n, IndexList of) {
        bool nonfinite[TILE];
        RowRange rows{back.d_output, n, 0, of.count, call.value_width, of.index};
        bool any = read_tile(rows, v_padded, largest_finite<T>(), d_output, nonfinite);
        gemm<ProductTerm, T>({d_value, v_padded}, {p, 0, 1}, {d_output, v_padded}, 1, v_padded, of.count);
        for (int i = 0; any && i < of.count; i++) {
            if (!nonfinite[i]) continue;
            read_row(back.d_output, n, of.index[i], call.value_width, d_output);
            for (Size d = 0; d < call.value_width; d++) d_value[d] += p[i] * d_output[d];
        }
    }

    Size padded, v_padded;
    Scorer scorer;
    Weight<T> weight;
    IrregularRows<typename Scorer::Literal, T> irregular_rows;
    T *query, *key, *d_output, *p, *ds, *d_b, *d_value;  // ds: the first column of a tile
    T *unused, *range, *workspace;  // unused: da and dw, which the other pass computes
    bool is_irregular_key = false;
};

// Sums the gradient of the weight over the tiles of queries, in order.
template <class T>
void add_weights(const Call& call, const Backward& back, Size n, const T* parts, Size tiles, Size padded) {
    if (!back.d_weight.data) return;
    T* to = address<T>(back.d_weight, n, 0);
    for (Size d = 0; d < call.width; d++) {
        double sum = 0;
        for (Size t = 0; t < tiles; t++) sum += double(parts[t * padded + d]);
        to[d] = (back.d_weight.is_first[n] ? T(0) : to[d]) + T(call.scale * sum);
    }
}

// Computes all gradients of a graph. delta: D of all problems, (problems, queries).
template <class Scorer, class T>
void backward_of_graph(const Call& call, const Backward& back, const T* delta, int threads) {
    const Size padded = round_up(call.width, LANES<T>), tasks = tiles_of(call.queries, NODES);
    ContiguousRows rows(call, threads);
    const Size at_once = rows.problems_at_once(call.problems < PROBLEMS_AT_ONCE ? call.problems : PROBLEMS_AT_ONCE);
    Block edge_gradients = allocate(Size(sizeof(EdgeGradient<T>)), call.keys * at_once);
    Block of_weights = allocate(padded * Size(sizeof(T)), tasks * at_once);
    KeySets<Scorer, T> sets(call, true, false, threads);
    Slots<QueriesOfGraph<Scorer, T>> queries(call, threads);
    Slots<KeysOfGraph<Scorer, T>> keys(call, threads);
    for (Size from = 0; from < call.problems; from += at_once) {
        const int count = remaining(call.problems, from, int(at_once));
        auto kept = [&](int m) { return (EdgeGradient<T>*)edge_gradients.data + m * call.keys; };
        auto d_weight = [&](int m) { return (T*)of_weights.data + m * tasks * padded; };
        const Call of_keys = rows.with_keys(call, from), of_queries = rows.with_queries(call, from);
        const Backward above = rows.with_output(call, back, from);
        for_each(threads, tasks, [&](Size t, int slot) {
            for (int m = 0; m < count; m++)
                queries.task(slot).run(of_keys, back, sets, from + m, t * NODES, delta + (from + m) * call.queries, kept(m),
                                       d_weight(m) + t * padded);
        });
        for_each(threads, tiles_of(call.edges.rows, NODES), [&](Size t, int slot) {
            for (int m = 0; m < count; m++) keys.task(slot).run(of_queries, above, sets, from + m, t * NODES, kept(m));
        });
        for (int m = 0; m < count; m++) add_weights(call, back, from + m, d_weight(m), tasks, padded);
    }
}

}  // namespace anyscore::ANYSCORE_ISA
