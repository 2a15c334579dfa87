// 1/x, the main cost of tanh, in two ways: processors differ in the faster one.
#pragma once

#include "simd/vector.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace anyscore::ANYSCORE_ISA {

// 1/x by division.
struct Divide {
    static constexpr int SHARE = 2;  // terms of Σ 1/x that share one division
    static constexpr bool SPARES_ADDITIONS = false;  // a division occupies the multipliers; see TanhRows::gradient_tile
    // A product of SHARE such terms cannot overflow.
    template <class T> static constexpr T CAP = sizeof(T) == 4 ? T(0x1p60) : T(0x1p500);
    template <class V> static ANYSCORE_INLINE V ratio(V x, V y) { return x / y; }

    // Whether `reciprocals` are cheaper for bounded x: above 1 and at most Estimate's CAP.
    template <class T> static constexpr bool HAS_BOUNDED = ANYSCORE_VECTOR_BYTES < 64 || sizeof(T) == 8;

    // Writes 1/x for any x; 0 beyond CAP, whose square would be subnormal, which costs Intel's processors a hundred
    // cycles. Processors that run float32 by division under AVX-512 have no such cost, and skip the test.
    template <class T, int N, bool IS_BOUNDED> static ANYSCORE_INLINE void reciprocals(const Vector<T>* x, Vector<T>* r) {
        for (int t = 0; t < N; t++) {
            r[t] = T(1) / x[t];
            if (HAS_BOUNDED<T> && !IS_BOUNDED) r[t] = x[t] < CAP<T> ? r[t] : fill(T(0));
        }
    }
};

#if defined(__AVX512F__)
// 1/x by the processor's estimate and a step of Newton's method, r(2 − xr): about 1 ulp for x ≤ 2¹²⁰, exact for 1.
// More terms share one estimate than one division: an estimate costs instructions, a division costs time.
class Estimate {
    static ANYSCORE_INLINE Vector<float> estimate(Vector<float> x) {
        return (Vector<float>)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
    }
    // Returns 1/x; 0 beyond 2⁶⁰.
    static ANYSCORE_INLINE Vector<float> reciprocal_or_zero(Vector<float> x, bool divides) {
        auto in_range = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(Divide::CAP<float>), _CMP_LT_OQ);
        if (divides) return (Vector<float>)_mm512_maskz_div_ps(in_range, _mm512_set1_ps(1), (__m512)x);
        Vector<float> r = estimate(x), error = 1 - x * r;
        return (Vector<float>)_mm512_maskz_fmadd_ps(in_range, (__m512)r, (__m512)error, (__m512)r);
    }

public:
    static constexpr int SHARE = 4;
    static constexpr bool SPARES_ADDITIONS = true;
    template <class T> static constexpr T CAP = T(0x1p30);
    template <class T> static constexpr bool HAS_BOUNDED = true;

    static ANYSCORE_INLINE Vector<float> ratio(Vector<float> x, Vector<float> y) {
        Vector<float> r = estimate(y);
        return x * (r + r * (1 - y * r));
    }

    // Writes 1/x for any x, 0 beyond 2⁶⁰. Four bounded x share an estimate: 1/x = y/(xy). Others share nothing: a
    // gradient needs 1/1 = 1 and 1/∞ = 0 exactly. One in four is a division, which runs beside the estimates.
    template <class T, int N, bool IS_BOUNDED> static ANYSCORE_INLINE void reciprocals(const Vector<T>* x, Vector<T>* r) {
        if constexpr (IS_BOUNDED && N == 4) {
            Vector<T> low = x[0] * x[1], high = x[2] * x[3], all = ratio(fill(T(1)), low * high);
            Vector<T> of_low = all * high, of_high = all * low;
            r[0] = of_low * x[1], r[1] = of_low * x[0], r[2] = of_high * x[3], r[3] = of_high * x[2];
        } else {
            for (int t = 0; t < N; t++) r[t] = reciprocal_or_zero(x[t], t % 4 == 3);
        }
    }
};
#endif

template <class V> struct Fraction {
    V above, below;
};
template <class V> ANYSCORE_INLINE Fraction<V> operator+(Fraction<V> x, Fraction<V> y) {
    return {x.above * y.below + y.above * x.below, x.below * y.below};
}

// Returns Σ 1/x of N terms ≤ CAP: 1/x + 1/y = (x + y)/(xy).
template <int N, class V> ANYSCORE_INLINE Fraction<V> sum_of_reciprocals(const V* x) {
    if constexpr (N == 2)
        return {x[0] + x[1], x[0] * x[1]};
    else
        return sum_of_reciprocals<N / 2>(x) + sum_of_reciprocals<N / 2>(x + N / 2);
}

// Returns Σ above/below of N fractions.
template <int N, class V> ANYSCORE_INLINE Fraction<V> sum_of_fractions(const Fraction<V>* x) {
    if constexpr (N == 1)
        return x[0];
    else
        return sum_of_fractions<N / 2>(x) + sum_of_fractions<N / 2>(x + N / 2);
}

}  // namespace anyscore::ANYSCORE_ISA
