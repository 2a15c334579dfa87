// The outer functions of scores, and their derivatives, over numbers side by side.
#pragma once

#include <cmath>

#include "call.h"
#include "functions.h"

namespace anyscore::ANYSCORE_ISA {

// x, and 0 for what is below; NaN stays.
template <class T> ANYSCORE_INLINE T from_zero(T x) { return bits(x) <= Bits<T>::INFINITE || is_nan(x) ? x : T(0); }

// arcosh(1 + x) for x ≥ 0: 2 asinh √(x/2).
template <class T> ANYSCORE_INLINE T arcosh_of_one_and(T x) {
    T half = x / T(2);
    T found = T(2) * log1p_lane(std::sqrt(x) * T(0.70710678118654752) + half / (T(1) + std::sqrt(T(1) + half)));
    return bits(x) == Bits<T>::INFINITE ? x : found;
}

// x becomes φ(x), of `count` numbers.
template <class T> void apply(Outer outer, T c, T* x, int count) {
    switch (outer) {
        case Outer::TANH:
            for (int j = 0; j < count; j++) x[j] = c * tanh_of(x[j] / c);
            return;
        case Outer::SQRT:
            for (int j = 0; j < count; j++) x[j] = -c * std::sqrt(from_zero(x[j]));
            return;
        case Outer::LOG1P:
            for (int j = 0; j < count; j++) x[j] = -c * log1p_lane(from_zero(x[j]));
            return;
        case Outer::ARCOSH:
            for (int j = 0; j < count; j++) x[j] = -c * arcosh_of_one_and(from_zero(x[j]));
            return;
        default: return;
    }
}

// dφ/dx from the value s = φ(x): 1 − (s/c)²; −c/(2√x) = c²/(2s); −c/(1 + x) = −c e^(s/c);
// −c/√(x (x + 2)) = −c/sinh(−s/c). 0 where it is infinite.
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

}  // namespace anyscore::ANYSCORE_ISA
