// The backward as a whole: its tasks, and the sums over their parts.
#pragma once

#include "attention/edges.h"

namespace anyscore::ANYSCORE_ISA {

// Writes D of all problems (problems, queries); 0 for a backward without output.
template <class T> void make_delta(const Call& call, const Backward& back, T* delta, int threads) {
    if (!back.output.data) return zero(delta, call.problems * call.queries);
    Slots<Delta<T>> slots(call, threads);
    Size blocks = (call.queries + LANES<T> - 1) / LANES<T>;
    for_each(threads, call.problems * blocks, [&](Size index, int slot) {
        slots.task(slot).run(call, back, index / blocks, index % blocks * LANES<T>, delta);
    });
}

template <class T> struct WeightReader {
    WeightReader(Arena& arena, const Call& call) : weight(arena, call.width) {}
    Weight<T> weight;
};

// Writes d_a: the sum over chunks, and over problems that share a, in order.
template <class Scorer, class T>
void sum_queries(const Call& call, const Backward& back, const Partial<T>& partial, int threads) {
    if (partial.is_whole) return;
    Slots<WeightReader<T>> slots(call, threads);
    Size blocks = tiles_of(call.queries);
    for_each(threads, back.of_a.count * blocks, [&](Size index, int slot) {
        WeightReader<T>& rows = slots.task(slot);
        Size set = index / blocks, first = index % blocks * TILE;
        Size end = first + remaining(call.queries, first);
        for (Size m = back.of_a.first[set]; m < back.of_a.first[set + 1]; m++) {
            Size n = back.of_a.members[m];
            rows.weight.read_for(call, n, call.width);
            for (Size i = first; i < end; i++) {
                T* to = (T*)back.d_a.data + back.d_a.at[n] + i * call.width;
                for (Size chunk = 0; chunk < partial.chunks; chunk++)
                    put_scaled(to, partial.of_a(n, chunk, 0) + i * partial.padded, rows.weight, Scorer::FACTOR, call.width,
                               m == back.of_a.first[set] && chunk == 0);
            }
        }
    });
}

// Writes d_weight: the sum over chunks, and over problems that share a weight, in order.
template <class T> void sum_weights(const Call& call, const Backward& back, const Partial<T>& partial, int threads) {
    if (!back.d_weight.data) return;
    for_each(threads, back.of_weight.count, [&](Size set, int) {
        T* to = (T*)back.d_weight.data + back.d_weight.at[back.of_weight.members[back.of_weight.first[set]]];
        for (Size d = 0; d < call.width; d++) {
            double sum = 0;
            for (Size m = back.of_weight.first[set]; m < back.of_weight.first[set + 1]; m++)
                for (Size chunk = 0; chunk < partial.chunks; chunk++)
                    sum += double(partial.of_weight(back.of_weight.members[m], chunk)[d]);
            to[d] = T(call.scale * sum);
        }
    });
}

// Writes the gradient of a bias of diagonals: the sum over chunks, and over problems that share it, in order.
template <class T> void sum_diagonals(const Call& call, const Backward& back, const Partial<T>& partial, int threads) {
    if (!partial.diagonals) return;
    for_each(threads, back.of_diagonals.count, [&](Size set, int) {
        Size first = back.of_diagonals.first[set], end = back.of_diagonals.first[set + 1];
        T* to = (T*)back.d_bias.data + back.d_bias.at[back.of_diagonals.members[first]];
        for (Size k = 0; k < call.queries + call.keys - 1; k++) {
            double sum = 0;
            for (Size m = first; m < end; m++)
                for (Size chunk = 0; chunk < partial.chunks; chunk++)
                    sum += partial.of_diagonals(back.of_diagonals.members[m], chunk)[k];
            to[k] = T(sum);
        }
    });
}

template <class Scorer, class T> void backward(const Call& call, const Backward& back, int threads) {
    using Task = BackwardChunk<Scorer, T>;
    threads = threads_for(call, threads);
    Block delta = allocate(call.queries * Size(sizeof(T)), call.problems);
    make_delta(call, back, (T*)delta.data, threads);
    if (call.is_graph()) return backward_of_graph<Scorer>(call, back, (const T*)delta.data, threads);
    Size padded = round_up(call.width, LANES<T>), tiles = tiles_of(call.keys);
    // A bias shared by problems leaves few groups of them.
    Size wanted = back.d_bias.data && !call.bias.diagonal ? 16 : 4;
    Size chunks = back.tasks.count ? (wanted + back.tasks.count - 1) / back.tasks.count : 1;
    chunks = chunks < tiles ? chunks : tiles ? tiles : 1;
    const bool is_whole = chunks == 1 && back.of_a.count == call.problems;
    Block d_a = allocate(call.queries * padded * Size(sizeof(T)), is_whole ? threads : call.problems * chunks);
    Block d_weight = allocate(padded * Size(sizeof(T)), call.problems * chunks);
    Size tokens = call.queries + call.keys;
    Size diagonals = back.d_bias.data && call.bias.diagonal ? (tokens < 2 ? 1 : tokens - 1) : 0;
    Block d_diagonals = allocate(diagonals * Size(sizeof(double)), call.problems * chunks);
    Partial<T> partial{chunks,
                       call.queries,
                       padded,
                       diagonals,
                       is_whole,
                       (T*)d_a.data,
                       (T*)d_weight.data,
                       (T*)delta.data,
                       (double*)d_diagonals.data};
    {
        KeySets<Scorer, T> sets(call, chunks > 1, false, threads);
        Slots<Task> slots(call, threads);
        for_each(threads, back.tasks.count * chunks, [&](Size index, int slot) {
            Task& task = slots.task(slot);
            Size group = index / chunks;
            for (Size m = back.tasks.first[group]; m < back.tasks.first[group + 1]; m++)
                task.run(call, back, sets, partial, back.tasks.members[m], index % chunks, slot);
        });
    }
    sum_queries<Scorer>(call, back, partial, threads);
    sum_weights(call, back, partial, threads);
    sum_diagonals(call, back, partial, threads);
}

}  // namespace anyscore::ANYSCORE_ISA
