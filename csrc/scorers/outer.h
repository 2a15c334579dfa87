// The outer functions of scores and their derivatives, over consecutive numbers. Those of formulas are compiled apart.
#pragma once

#include <cmath>

#include "runtime/call.h"
#include "simd/functions.h"

namespace anyscore::ANYSCORE_ISA {

// Returns `found` for x ≥ 0 and 0 for x < 0; ∞ and NaN stay. The bits of x choose last: the compiler assumes finite
// numbers before that.
template <class T> ANYSCORE_INLINE T of_distance(T x, T found) {
    T of_number = bits(x) <= Bits<T>::INFINITE ? found : T(0);
    return is_nan(x) || bits(x) == Bits<T>::INFINITE ? x : of_number;
}

// Returns arcosh(1 + x) for x ≥ 0: 2 asinh √(x/2).
template <class T> ANYSCORE_INLINE T arcosh_of_one_and(T x) {
    T half = x / T(2);
    return T(2) * log1p_lane(std::sqrt(x) * T(0.70710678118654752) + half / (T(1) + std::sqrt(T(1) + half)));
}

// Replaces `count` numbers x by φ(x).
template <class T> void apply(Outer outer, T c, T* x, int count) {
    switch (outer) {
        case Outer::TANH:
            for (int j = 0; j < count; j++) x[j] = c * tanh_of(x[j] / c);
            return;
        case Outer::SQRT:
            for (int j = 0; j < count; j++) x[j] = -c * of_distance(x[j], std::sqrt(x[j]));
            return;
        case Outer::LOG1P:
            for (int j = 0; j < count; j++) x[j] = -c * of_distance(x[j], log1p_lane(x[j]));
            return;
        case Outer::ARCOSH:
            for (int j = 0; j < count; j++) x[j] = -c * of_distance(x[j], arcosh_of_one_and(x[j]));
            return;
        default: return;
    }
}

// Writes dφ/dx from the value s = φ(x); 0 where the derivative is infinite.
//
//     TANH    1 − (s/c)²
//     SQRT    −c/(2√x) = c²/(2s)
//     LOG1P   −c/(1 + x) = −c e^(s/c)
//     ARCOSH  −c/√(x (x + 2)) = −c/sinh(−s/c)
template <class T> void slopes_of(Outer outer, T c, const T* s, T* slopes, int count) {
    switch (outer) {
        case Outer::TANH:
            for (int j = 0; j < count; j++) {
                T t = s[j] / c;
                slopes[j] = (T(1) - t) * (T(1) + t);
            }
            return;
        case Outer::SQRT:
            for (int j = 0; j < count; j++) slopes[j] = s[j] < T(0) ? (c / s[j]) * (c / T(2)) : T(0);
            return;
        case Outer::LOG1P:
            for (int j = 0; j < count; j++) slopes[j] = -c * exp_or_zero(s[j] / c);
            return;
        case Outer::ARCOSH:
            for (int j = 0; j < count; j++) {
                T m = expm1_clamped(-s[j] / c);  // sinh = (m + m/(m + 1)) / 2
                slopes[j] = s[j] < T(0) ? -(c + c) / (m + m / (m + T(1))) : T(0);
            }
            return;
        default: return;
    }
}

// Replaces `count` numbers x by φ(x) of a call, and writes dφ/dx to `slopes`, if these are not null.
template <class T> void apply(const Call& call, T* x, T* slopes, int count) {
    if (call.outer == Outer::OWN) return call.own_outer(x, slopes, count);
    const T c = T(call.outer_scale);
    apply(call.outer, c, x, count);
    if (slopes) slopes_of(call.outer, c, x, slopes, count);
}

}  // namespace anyscore::ANYSCORE_ISA
