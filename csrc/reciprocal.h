// 1/x, which is most of what tanh costs: two ways, of which processors differ in the faster.
#pragma once

#include "vector.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace anyscore::ANYSCORE_ISA {

// By division.
struct Divide {
    static constexpr int SHARE = 2;  // terms of Σ 1/x that share a division
    static constexpr bool SPARES_ADDITIONS = false;  // a division fills the pipes of multiplications
    template <class T> static constexpr T CAP = sizeof(T) == 4 ? T(0x1p60) : T(0x1p500);  // SHARE of them may be multiplied
    template <class V> static ANYSCORE_INLINE V ratio(V x, V y) { return x / y; }

    template <class T, int N> static ANYSCORE_INLINE void reciprocals(const Vector<T>* x, Vector<T>* r) {
        for (int t = 0; t < N; t++) r[t] = T(1) / x[t];
    }
};

#if defined(__AVX512F__)
// By the processor's estimate and a step of Newton's method, r(2 − xr): about 1 ulp, for x ≤ 2¹²⁰. It
// takes as many instructions as what it replaces, so more share it.
struct Estimate {
    static constexpr int SHARE = 4;
    static constexpr bool SPARES_ADDITIONS = true;
    template <class T> static constexpr T CAP = T(0x1p30);

    static ANYSCORE_INLINE Vector<float> reciprocal(Vector<float> x) {
        Vector<float> r = (Vector<float>)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
        return r + r * (1 - x * r);
    }
    static ANYSCORE_INLINE Vector<float> ratio(Vector<float> x, Vector<float> y) { return x * reciprocal(y); }

    // Of 1, 2 or 4: 1/x = y/(xy).
    template <class T, int N> static ANYSCORE_INLINE void reciprocals(const Vector<T>* x, Vector<T>* r) {
        Vector<T> y[N], products[(N + 1) / 2], of_products[(N + 1) / 2];
        for (int t = 0; t < N; t++) y[t] = min(x[t], fill(T(N > 2 ? 0x1p30 : 0x1p60)));
        if constexpr (N == 1) {
            r[0] = reciprocal(y[0]);
        } else {
            for (int t = 0; t < N; t += 2) products[t / 2] = y[t] * y[t + 1];
            if constexpr (N == 2) {
                of_products[0] = reciprocal(products[0]);
            } else {
                Vector<T> of_all = reciprocal(products[0] * products[1]);
                of_products[0] = of_all * products[1], of_products[1] = of_all * products[0];
            }
            for (int t = 0; t < N; t++) r[t] = of_products[t / 2] * y[t ^ 1];
        }
    }
};
#endif

// Σ 1/x of N terms ≤ CAP, as a fraction: (1/x + 1/y) = (x + y)/(xy).
template <class V> struct Fraction {
    V above, below;
};
template <int N, class V> ANYSCORE_INLINE Fraction<V> sum_of_reciprocals(const V* x) {
    if constexpr (N == 2) {
        return {x[0] + x[1], x[0] * x[1]};
    } else {
        auto one = sum_of_reciprocals<N / 2>(x), two = sum_of_reciprocals<N / 2>(x + N / 2);
        return {one.above * two.below + two.above * one.below, one.below * two.below};
    }
}

}  // namespace anyscore::ANYSCORE_ISA
