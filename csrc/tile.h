// What is common to forward and backward: who attends in a tile, and scores of odd rows.
#pragma once

#include "philox.h"
#include "rows.h"

namespace anyscore::ANYSCORE_ISA {

// The keys that each query of a block may attend.
struct Spans {
    Size start[TILE], stop[TILE];
    Size low, high;  // of all queries of the block that attend anything; low = high if none does

    Spans(const Call& call, Size n, Size first, int count) {
        low = call.keys, high = 0;
        for (int i = 0; i < count; i++) {
            start[i] = at(call.start, n, first + i, 0), stop[i] = at(call.stop, n, first + i, call.keys);
            start[i] = start[i] < 0 ? 0 : start[i], stop[i] = stop[i] > call.keys ? call.keys : stop[i];
            if (start[i] >= stop[i]) continue;
            low = start[i] < low ? start[i] : low;
            high = stop[i] > high ? stop[i] : high;
        }
        if (low > high) low = high = 0;
    }

private:
    static Size at(const Bound& bound, Size n, Size i, Size otherwise) {
        return bound.data ? bound.data[bound.at[n] + i * bound.stride] : otherwise;
    }
};

// The keys [from, to) outside of which no query of problem n attends any.
inline void widen(const Call& call, Size n, Size& from, Size& to) {
    for (Size i = 0; i < call.queries && (from > 0 || to < call.keys); i += TILE) {
        Spans block(call, n, i, left_of(call.queries, i));
        if (block.low == block.high) continue;
        from = block.low < from ? block.low : from;
        to = block.high > to ? block.high : to;
    }
}

// The part of a tile that one query may attend: columns [from, to), and of these what `keep` says.
struct Part {
    int from, to;
    const bool* keep;  // of column j: keep[j · column]; null if all
    Size column;

    Part(const Call& call, const Spans& spans, Size n, Size first_query, int i, Size first_key, int keys) {
        Size a = spans.start[i] - first_key, b = spans.stop[i] - first_key;
        from = a < 0 ? 0 : a > keys ? keys : int(a), to = b > keys ? keys : b < 0 ? 0 : int(b);
        if (to < from) to = from;
        column = call.mask.column;
        keep = !call.mask.data ? nullptr
                               : call.mask.data + call.mask.at[n] + (first_query + i) * call.mask.row + first_key * column;
    }
    bool has(int j) const { return j >= from && j < to && (!keep || keep[j * column]); }
    bool is_whole(int keys) const { return from == 0 && to == keys && !keep; }

    // x[j] = `otherwise` for the columns up to `end` that are not attended.
    template <class T> void mask(T* x, int end, T otherwise) const {
        for (int j = 0; j < from; j++) x[j] = otherwise;
        for (int j = to; j < end; j++) x[j] = otherwise;
        if (!keep) return;
        for (int j = from; j < to; j++) x[j] = keep[j * column] ? x[j] : otherwise;
    }
};

template <class T> ANYSCORE_INLINE T lowest() { return -largest_finite<T>(); }

// Scores s of one query to weights, from its log-sum-exp.
template <class T> inline void weights_of(const Part& part, T* s, T lse, int keys) {
    bool poisoned = is_nan(lse), empty = bits(lse) == bits(minus_infinity<T>());
    T at = poisoned || empty ? T(0) : lse;
    for (int j = 0; j < keys; j++) s[j] = exp_or_zero(min(s[j] - at, T(1)));
    if (poisoned || empty)
        for (int j = 0; j < keys; j++) s[j] = poisoned ? nan<T>() : T(0);
    if (!part.is_whole(keys)) part.mask(s, keys, T(0));
}

// One problem's weight times the scale, and whether all of it is finite.
template <class T> struct Weight {
    Weight(Arena& arena, Size padded) : raw(arena.take<T>(padded)), finite(arena.take<T>(padded)) {}

    // Gives whether it is another than the last one read.
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
        is_odd = largest(raw, call.width) >= Bits<T>::INFINITE;
        for (Size d = 0; d < padded; d++) finite[d] = is_odd ? T(0) : raw[d];
        return true;
    }
    T *raw, *finite;
    bool is_odd = false;

private:
    Size last = -1;
};

// to += factor · weight · from; what is 0 stays 0 whatever the weight.
template <class T> inline void add_scaled(T* to, const T* from, const Weight<T>& weight, T factor, Size width) {
    if (weight.is_odd)
        for (Size d = 0; d < width; d++) to[d] += bits(from[d]) << 1 ? factor * weight.raw[d] * from[d] : T(0);
    else
        for (Size d = 0; d < width; d++) to[d] += factor * weight.raw[d] * from[d];
}

// Scores and gradients by the formula itself, for pairs of rows one of which is odd: not finite, or
// too large for the fast form. They are few.
template <class Literal, class T> class OddRows {
public:
    OddRows(Arena& arena, Size width) : a(arena.take<T>(width)), b(arena.take<T>(width)) {}

    T score(const Call& call, Size n, Size i, Size j, const T* weight) {
        read_row(call.a, n, i, call.width, a);
        read_row(call.b, n, j, call.width, b);
        double sum = 0;
        for (Size d = 0; d < call.width; d++) sum += double(weight[d] * Literal::value(a[d], b[d]));
        return T(sum);
    }

    // Adds to da, db and dw as Plain::gradients does.
    void gradient(const Call& call, Size n, Size i, Size j, T g, T factor, T* da, T* db, T* dw) {
        read_row(call.a, n, i, call.width, a);
        read_row(call.b, n, j, call.width, b);
        for (Size d = 0; d < call.width; d++) {
            T value, by_a, by_b;
            Literal::gradient(a[d], b[d], value, by_a, by_b);
            if (is_nan(value)) by_a = by_b = value;
            da[d] += g * by_a / factor, db[d] += g * by_b / factor, dw[d] += g * value;
        }
    }

private:
    T *a, *b;
};

}  // namespace anyscore::ANYSCORE_ISA
