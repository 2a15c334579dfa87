// Sparsemax (POWER 1) and entmax-1.5 (POWER 2) of rows of scores:
//
//     w_j = max(s_j / POWER − τ, 0)^POWER,  Σ_j w_j = 1
//     ds_j = g_j (dw_j − Σ_l g_l dw_l / Σ_l g_l),  g_j = 1 if w_j > 0, or √w_j for POWER 2
#pragma once

#include <cmath>

#include "runtime/parallel.h"
#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// One row z of scaled scores; the largest is 0, and −∞ has no weight. Its whole vectors end at n; `tail` is the rest,
// filled up with numbers that have no weight.
template <class T, int POWER> struct Row {
    const T* z;
    Size n;
    Vector<T> tail;

    // Returns t after a step of Newton's method for norm(max(z − t, 0)) − 1. The norm is convex in t, so a step from
    // the left never passes the root.
    T step_from(T t) const {
        T total, slope;
        sums(t, total, slope);
        if (slope == 0) return t;  // no entry has a weight, and 0/0 would break the comparisons
        if (POWER == 1) return t + (total - 1) / slope;
        T norm = std::sqrt(total);
        return t + (norm - 1) * norm / slope;
    }
    // Returns whether t is at or below the root.
    bool is_below(T t) const {
        T total, slope;
        sums(t, total, slope);
        return total >= 1;
    }

private:
    // Writes Σ max(z − t, 0)^POWER and Σ max(z − t, 0)^(POWER − 1).
    void sums(T t, T& total, T& slope) const {
        constexpr int L = LANES<T>, AT_ONCE = 4;
        Vector<T> totals[AT_ONCE] = {}, slopes[AT_ONCE] = {};
        Size j = 0;
        for (; j + AT_ONCE * L <= n; j += AT_ONCE * L)
            for (int k = 0; k < AT_ONCE; k++) add(load(z + j + k * L), t, totals[k], slopes[k]);
        for (; j < n; j += L) add(load(z + j), t, totals[0], slopes[0]);
        add(tail, t, totals[1], slopes[1]);
        total = sum_lanes<T>(sum<AT_ONCE>(totals)), slope = sum_lanes<T>(sum<AT_ONCE>(slopes));
    }

    static ANYSCORE_INLINE void add(Vector<T> x, T t, Vector<T>& total, Vector<T>& slope) {
        x = x - t;
        if constexpr (POWER == 1) slope += x > T(0) ? fill<T>(1) : Vector<T>{};
        x = max(x, Vector<T>{});
        if constexpr (POWER == 1) total += x;
        if constexpr (POWER == 2) total += x * x, slope += x;
    }
};

// Returns τ, by Newton's steps from the left. A step of bisection follows every fourth one, which bounds their
// number.
template <class T, int POWER> inline T threshold_of(const T* z, Size keys) {
    constexpr int L = LANES<T>, MOST = 4 * 8 * int(sizeof(T));
    Row<T, POWER> row{z, keys / L * L, fill<T>(-2)};
    T rest[L];
    store(rest, row.tail);
    for (Size j = row.n; j < keys; j++) rest[j - row.n] = z[j];
    row.tail = load(rest);
    T low = -1, high = 0;
    for (int step = 1; step <= MOST; step++) {
        T next = row.step_from(low);
        if (!(next > low && next < high)) break;
        low = next;
        if (step % 4) continue;
        T middle = (low + high) / 2;
        (row.is_below(middle) ? low : high) = middle;
    }
    return low;
}

template <class T, int POWER> struct Sparse {
    // Writes the weights of s. In a row with NaN or +∞ every weight becomes NaN, except those of scores −∞.
    static void forward(const T* s, Size keys, T* w) {
        T top = -largest_finite<T>();
        bool poisoned = false;
        for (Size j = 0; j < keys; j++) top = max(top, s[j]);
        for (Size j = 0; j < keys; j++) poisoned |= is_nan(s[j]) || bits(s[j]) == Bits<T>::INFINITE;
        if (poisoned) return fill_attended(s, keys, w);
        for (Size j = 0; j < keys; j++) {
            // Halves cannot overflow. A score 4 below the largest has no weight; nor has −∞, which only its bits
            // tell.
            T half = s[j] * T(0.5) - top * T(0.5);
            half = bits(s[j]) == bits(minus_infinity<T>()) ? T(-2) : max(half, T(-2));
            w[j] = half * T(2.0 / POWER);
        }
        T tau = threshold_of<T, POWER>(w, keys);
        for (Size j = 0; j < keys; j++) {
            T x = max(w[j] - tau, T(0));
            w[j] = POWER == 1 ? x : x * x;
        }
    }

    // Writes ds from the weights w and their gradients dw; 0 where a weight is 0.
    static void backward(const T* w, const T* dw, Size keys, T* ds) {
        T total = 0, slope = 0;
        bool poisoned = false;
        for (Size j = 0; j < keys; j++) poisoned |= is_nan(w[j]);
        if (poisoned) {
            for (Size j = 0; j < keys; j++) ds[j] = bits(w[j]) ? nan<T>() : T(0);
            return;
        }
        constexpr int L = LANES<T>;
        Vector<T> totals{}, slopes{};
        Size j = 0;
        for (; j + L <= keys; j += L) {
            Vector<T> g = root(load(w + j));
            totals += g > T(0) ? g * load(dw + j) : Vector<T>{}, slopes += g;
        }
        total = sum_lanes<T>(totals), slope = sum_lanes<T>(slopes);
        for (; j < keys; j++) {
            T g = root(w[j]);
            total += g > 0 ? g * dw[j] : T(0), slope += g;
        }
        T mean = slope > 0 ? total / slope : T(0);
        for (j = 0; j < keys; j++) ds[j] = w[j] > 0 ? root(w[j]) * (dw[j] - mean) : T(0);
    }

private:
    static void fill_attended(const T* s, Size keys, T* w) {
        for (Size j = 0; j < keys; j++) w[j] = bits(s[j]) == bits(minus_infinity<T>()) ? T(0) : nan<T>();
    }
    static ANYSCORE_INLINE T root(T w) { return POWER == 1 ? T(w > 0) : std::sqrt(w); }
    static ANYSCORE_INLINE Vector<T> root(Vector<T> w) {
        T lanes[LANES<T>];
        store(lanes, w);
        for (int l = 0; l < LANES<T>; l++) lanes[l] = root(lanes[l]);
        return load(lanes);
    }
};

template <class Function> inline void for_rows(Size rows, Size keys, int threads, Function&& function) {
    constexpr Size AT_ONCE = 16;
    if (rows * keys < 1 << 14) threads = 1;
    for_each(threads, (rows + AT_ONCE - 1) / AT_ONCE, [&](Size block, int) {
        for (Size i = block * AT_ONCE; i < rows && i < (block + 1) * AT_ONCE; i++) function(i * keys);
    });
}

template <class T> void sparse(int power, const void* s, Size rows, Size keys, void* w, int threads) {
    for_rows(rows, keys, threads, [&](Size at) {
        auto run = power == 1 ? Sparse<T, 1>::forward : Sparse<T, 2>::forward;
        run((const T*)s + at, keys, (T*)w + at);
    });
}

template <class T>
void sparse_backward(int power, const void* w, const void* dw, Size rows, Size keys, void* ds, int threads) {
    for_rows(rows, keys, threads, [&](Size at) {
        auto run = power == 1 ? Sparse<T, 1>::backward : Sparse<T, 2>::backward;
        run((const T*)w + at, (const T*)dw + at, keys, (T*)ds + at);
    });
}

}  // namespace anyscore::ANYSCORE_ISA
