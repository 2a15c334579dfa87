// Output and log-sum-exp, by an online softmax over tiles of keys.
#pragma once

#include "attend.h"

namespace anyscore::ANYSCORE_ISA {

constexpr Size FEW = 2;  // queries up to which lanes go along features: a decoder's step

// Below this many elements a second thread costs more than it saves.
inline int threads_for(const Call& call, int threads) {
    double elements = double(call.problems) * double(call.queries) * double(call.keys) * double(call.width + call.value_width / 2 + 8);
    return elements < 1e6 ? 1 : threads;
}

template <class Scorer, class T> class ForwardBlock {
    static constexpr int L = LANES<T>;

public:
    ForwardBlock(Arena& arena, const Call& call)
        : tile(arena, call), values(arena, call), output(arena.take<T>(TILE * values.padded)),
          top(arena.take<T>(TILE)), sum(arena.take<T>(TILE * L)), factors(arena.take<T>(TILE)) {}

    void run(const Call& call, const KeySets<Scorer, T>& sets, Size n, Size first, void* to, Type type, T* lse) {
        int count = left_of(call.queries, first);
        Spans spans(call, n, first, count);
        tile.begin(call, sets, n);
        tile.queries(call, n, first, count);
        bool few = call.queries <= FEW;
        if (few)
            tile.scorer.few_queries(tile.query, count);
        else
            tile.scorer.queries(tile.query, count);
        zero(output, count * values.padded);
        for (int i = 0; i < count; i++) top[i] = lowest<T>(), is_odd[i] = false;
        zero(sum, count * L);
        for (Size j0 = spans.low / TILE * TILE; j0 < spans.high; j0 += TILE) {
            int keys = left_of(spans.high, j0);
            if (few) {
                tile.few_keys(call, n, j0, keys);
                tile.few_compute(call, spans, n, first, count, j0, keys);
            } else {
                tile.keys(call, sets, n, j0, keys);
                tile.compute(call, spans, n, first, count, j0, keys);
            }
            bool whole = true, any_odd = has_odd(tile.s, count, int(round_up(keys, L)));
            for (int i = 0; i < count; i++) whole &= softmax(call, spans, n, first, i, j0, keys, any_odd);
            values.read_for(call, n, j0, keys, whole);
            gemm(output, values.padded, tile.s, TILE, 1, values.rows, values.stride, count, values.padded, keys);
            values.add_odd(call, spans, n, first, count, j0, keys, tile.s, output);
        }
        for (int i = 0; i < count; i++) {
            T* row = output + i * values.padded;
            T total = sum_lanes<T>(load(sum + i * L));
            T scale = is_odd[i] ? nan<T>() : total > 0 ? 1 / total : T(0);
            for (Size d = 0; d < call.value_width; d++) row[d] *= scale;
            Size at = n * call.queries + first + i;
            write(to, type, at * call.value_width, call.value_width, row);
            lse[at] = is_odd[i] ? nan<T>() : total > 0 ? top[i] + T(std::log(total)) : minus_infinity<T>();
        }
    }

private:
    // Whether a score is NaN or +∞, perhaps one that is masked.
    static bool has_odd(const T* s, int rows, int end) {
        typename Bits<T>::Unsigned odd = 0;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < end; j++) odd |= is_nan(s[i * TILE + j]) || (bits(s[i * TILE + j]) == Bits<T>::INFINITE);
        return odd;
    }

    // Scores of query i to weights relative to the running maximum; gives whether it attends all keys.
    bool softmax(const Call& call, const Spans& spans, Size n, Size first, int i, Size j0, int keys, bool any_odd) {
        Part part(call, spans, n, first, i, j0, keys);
        T* s = tile.s + i * TILE;
        int end = int(round_up(keys, L));
        bool whole = part.is_whole(keys);
        if (!whole || end != keys) part.mask(s, end, lowest<T>());
        if (any_odd && has_odd(s, 1, end)) is_odd[i] = true;
        T most = lowest<T>();
        for (int j = 0; j < end; j++) most = max(most, s[j]);
        if (most > top[i]) {
            T scale = exp_or_zero(top[i] - most);
            store(sum + i * L, scale * load(sum + i * L));
            T* row = output + i * values.padded;
            for (Size d = 0; d < values.padded; d++) row[d] *= scale;
            top[i] = most;
        }
        T here = top[i];
        if (is_odd[i] || here == lowest<T>()) {  // attends nothing here, or scores of −∞ alone
            for (int j = 0; j < end; j++) s[j] = 0;
            return whole;
        }
        for (int j = 0; j < end; j++) s[j] = exp_or_zero(s[j] - here);
        Vector<T> total = load(sum + i * L);
        for (int j = 0; j < end; j += L) total += load(s + j);
        store(sum + i * L, total);
        if (call.dropout.rate > 0) {
            dropout_factors(call.dropout, n, first + i, j0, factors);
            for (int j = 0; j < end; j++) s[j] *= factors[j];
        }
        return whole;
    }

    TileScores<Scorer, T> tile;
    TileValues<T> values;
    T *output, *top, *sum, *factors;
    bool is_odd[TILE];
};

template <class Scorer, class T>
void forward(const Call& call, void* output, Type type, void* lse, int threads) {
    using Task = ForwardBlock<Scorer, T>;
    threads = threads_for(call, threads);
    Size blocks = tiles_of(call.queries);
    bool shared = call.queries > FEW && call.problems * blocks > call.key_sets;
    KeySets<Scorer, T> sets(call, shared, shared, threads);
    Slots<Task> slots(call, threads);
    for_each(threads, call.problems * blocks, [&](Size index, int slot) {
        Task& task = slots.task(slot);
        task.run(call, sets, index / blocks, index % blocks * TILE, output, type, (T*)lse);
    });
}

// The weights themselves, from the log-sum-exp: for those who ask for them.
template <class Scorer, class T> void weights(const Call& call, const void* lse, void* output, int threads) {
    using Task = TileScores<Scorer, T>;
    threads = threads_for(call, threads);
    Size blocks = tiles_of(call.queries);
    bool few = call.queries <= FEW;  // scores as in the forward, to the last bit
    bool shared = !few && call.problems * blocks > call.key_sets;
    KeySets<Scorer, T> sets(call, shared, shared, threads);
    Slots<Task> slots(call, threads);
    for_each(threads, call.problems * blocks, [&](Size index, int slot) {
        Task& task = slots.task(slot);
        Size n = index / blocks, first = index % blocks * TILE;
        int count = left_of(call.queries, first);
        Spans spans(call, n, first, count);
        T* to = (T*)output + (n * call.queries + first) * call.keys;
        zero(to, count * call.keys);
        task.begin(call, sets, n);
        task.queries(call, n, first, count);
        if (few)
            task.scorer.few_queries(task.query, count);
        else
            task.scorer.queries(task.query, count);
        for (Size j0 = spans.low / TILE * TILE; j0 < spans.high; j0 += TILE) {
            int keys = left_of(spans.high, j0);
            if (few) {
                task.few_keys(call, n, j0, keys);
                task.few_compute(call, spans, n, first, count, j0, keys);
            } else {
                task.keys(call, sets, n, j0, keys);
                task.compute(call, spans, n, first, count, j0, keys);
            }
            for (int i = 0; i < count; i++) {
                T of_row = ((const T*)lse)[n * call.queries + first + i];
                Part part(call, spans, n, first, i, j0, keys);
                weights_of(part, task.s + i * TILE, of_row, keys);
                std::memcpy(to + i * call.keys + j0, task.s + i * TILE, std::size_t(keys) * sizeof(T));
            }
        }
    });
}

}  // namespace anyscore::ANYSCORE_ISA
