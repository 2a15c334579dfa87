// The functions of formulas: of a number, or of every lane of a vector.
//
// A single number comes from an irregular row and may be anything, so the standard library computes it. Vectors hold
// finite numbers, but functions of them may be infinite or NaN, and NaN must stay NaN.
#pragma once

#include <cmath>
#include <type_traits>

#include "simd/tanh_of.h"

namespace anyscore::ANYSCORE_ISA {

template <class V, class Function> ANYSCORE_INLINE V lane_by_lane(V x, Function function) {
    using T = ElementOf<V>;
    T lanes[LANES<T>];
    store<T>(lanes, x);
    for (int l = 0; l < LANES<T>; l++) lanes[l] = function(lanes[l]);
    return load<T>(lanes);
}

// Returns ln x. With x = 2ⁿ m, 1/√2 ≤ m < √2, and s = (m − 1)/(m + 1):
//
//     ln x = n ln 2 + 2 (s + s³/3 + s⁵/5 + …)
template <class T> ANYSCORE_INLINE T log_lane(T x) {
    using Unsigned = typename Bits<T>::Unsigned;
    using Signed = typename Bits<T>::Signed;
    constexpr int MANTISSA = Bits<T>::MANTISSA, TERMS = sizeof(T) == 4 ? 5 : 11;
    constexpr T NORMAL = sizeof(T) == 4 ? T(1.17549435e-38) : T(2.2250738585072014e-308), SHIFT = T(Unsigned(1) << MANTISSA);
    const bool small = x < NORMAL;
    const Unsigned u = bits(small ? x * SHIFT : x);
    const Signed n = Signed(u - bits(T(0.70710678118654752))) >> MANTISSA;
    const T m = from_bits<T>(u - (Unsigned(n) << MANTISSA)), f = m - 1, s = f / (2 + f), z = s * s;
    T sum = T(2) / (2 * TERMS + 1);
    for (int k = TERMS - 1; k > 0; k--) sum = sum * z + T(2) / (2 * k + 1);
    const T power = T(n) - (small ? T(MANTISSA) : T(0));
    const T y = power * Exp<T>::LN2_HIGH + (power * Exp<T>::LN2_LOW + (s * z * sum + 2 * s));
    const T special = u == Bits<T>::INFINITE ? x : u << 1 ? nan<T>() : minus_infinity<T>();
    return u - 1 < Bits<T>::INFINITE - 1 ? y : special;
}

// Returns ln(1 + x). The digits of x that 1 + x loses are added back as lost/u.
template <class T> ANYSCORE_INLINE T log1p_lane(T x) {
    const T u = 1 + x, lost = x > 1 ? 1 - (u - x) : x - (u - 1);
    const T y = log_lane(u);
    return u > 0 && bits(u) < Bits<T>::INFINITE ? y + lost / u : y;
}

// Returns ln(1 + x) for x in [0, 1], by the series of log_lane alone, with s = x/(2 + x).
template <class T> ANYSCORE_INLINE T log1p_unit_lane(T x) {
    constexpr int TERMS = sizeof(T) == 4 ? 8 : 17;
    const T s = x / (2 + x), z = s * s;
    T sum = T(2) / (2 * TERMS + 1);
    for (int k = TERMS - 1; k > 0; k--) sum = sum * z + T(2) / (2 * k + 1);
    return s * z * sum + 2 * s;
}

template <class T> ANYSCORE_INLINE T expm1_lane(T x) {
    return x > Exp<T>::LIMIT ? from_bits<T>(Bits<T>::INFINITE) : expm1_clamped(x);
}

// Returns 1 + 2z/(2K + 1) (1 + 2z/(2K + 3) (1 + …)), up to the term LAST.
template <class T, int K, int LAST> ANYSCORE_INLINE T erf_series(T z) {
    if constexpr (K > LAST)
        return T(1);
    else
        return T(1) + z * T(2.0 / (2 * K + 1)) * erf_series<T, K + 1, LAST>(z);
}

// Returns erf x = 2x/√π · e^−x² (1 + 2x²/3 (1 + 2x²/5 (1 + …))), whose terms are all positive; ±1 beyond ±END.
template <class T> ANYSCORE_INLINE T erf_lane(T x) {
    constexpr T END = sizeof(T) == 4 ? 4 : 6;
    constexpr int LAST = sizeof(T) == 4 ? 45 : 100;
    const T within = max(min(x, END), -END), z = within * within;
    return max(min(T(1.1283791670955126) * within * exp_within(-z) * erf_series<T, 1, LAST>(z), T(1)), T(-1));
}

// π/2 in four parts. The first three have few bits: n times each is exact for n = x · 2/π, rounded, and |x| ≤ REACH.
template <class T> struct Turn;
template <> struct Turn<float> {
    static constexpr float PARTS[] = {1.5703125f, 0.0004837512969970703f, 7.549533620476723e-08f, 2.563344151594519e-12f};
    static constexpr float REACH = 8192;
    static constexpr int TERMS = 5;
};
template <> struct Turn<double> {
    static constexpr double PARTS[] = {1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21,
                                       8.4784276603689e-32};
    static constexpr double REACH = 1048576;
    static constexpr int TERMS = 9;
};

// Returns 1 − z/(K (K + 1)) (1 − z/((K + 2)(K + 3)) (1 − …)) with z = x²: sin x/x for K = 2, cos x for K = 1.
template <class T, int K, int LEFT> ANYSCORE_INLINE T wave_series(T z) {
    if constexpr (LEFT == 0)
        return T(1);
    else
        return T(1) - z * T(1.0 / (K * (K + 1))) * wave_series<T, K + 2, LEFT - 1>(z);
}

// Returns sin(x + QUARTERS π/2) for |x| ≤ REACH, by one of the series of r = x − n π/2, |r| ≤ π/4.
template <int QUARTERS, class T> ANYSCORE_INLINE T wave_lane(T x) {
    using U = typename Bits<T>::Unsigned;
    constexpr T ROUND = Bits<T>::ROUND;
    const T t = x * T(0.63661977236758134) + ROUND, n = t - ROUND;
    T r = x;
    for (T part : Turn<T>::PARTS) r -= n * part;
    const U quarter = bits(t) + QUARTERS;
    const T z = r * r, sine = r * wave_series<T, 2, Turn<T>::TERMS>(z), cosine = wave_series<T, 1, Turn<T>::TERMS>(z);
    return from_bits<T>(bits(quarter & 1 ? cosine : sine) ^ (quarter & 2) << (8 * sizeof(T) - 2));
}

// A vector with a number beyond REACH goes to the standard library, lane by lane.
template <int QUARTERS, class V> ANYSCORE_INLINE V wave(V x) {
    if constexpr (std::is_arithmetic_v<V>) {
        return QUARTERS ? std::cos(x) : std::sin(x);
    } else {
        using T = ElementOf<V>;
        T lanes[LANES<T>];
        store<T>(lanes, x);
        typename Bits<T>::Unsigned most = 0;
        for (T lane : lanes) most = bits(lane) << 1 > most ? bits(lane) << 1 : most;
        if (most <= bits(Turn<T>::REACH) << 1) return lane_by_lane(x, [](T y) { return wave_lane<QUARTERS>(y); });
        return lane_by_lane(x, [](T y) { return QUARTERS ? std::cos(y) : std::sin(y); });
    }
}
template <class V> ANYSCORE_INLINE V sin_each(V x) { return wave<0>(x); }
template <class V> ANYSCORE_INLINE V cos_each(V x) { return wave<1>(x); }

// Defines name(x): of_number(x) for a number, of_lane of every lane that is not NaN for a vector.
#define ANYSCORE_FUNCTION(name, of_number, of_lane) \
    template <class V> ANYSCORE_INLINE V name(V x) { \
        if constexpr (std::is_arithmetic_v<V>) \
            return of_number(x); \
        else \
            return lane_by_lane(x, [](auto y) ANYSCORE_LAMBDA_INLINE { return is_nan(y) ? y : of_lane(y); }); \
    }
#define ANYSCORE_LAMBDA_INLINE __attribute__((always_inline))
ANYSCORE_FUNCTION(exp_each, std::exp, exp_saturated)
ANYSCORE_FUNCTION(expm1_each, std::expm1, expm1_lane)
ANYSCORE_FUNCTION(log_each, std::log, log_lane)
ANYSCORE_FUNCTION(log1p_each, std::log1p, log1p_lane)
ANYSCORE_FUNCTION(log1p_unit_each, std::log1p, log1p_unit_lane)
ANYSCORE_FUNCTION(sqrt_each, std::sqrt, std::sqrt)
ANYSCORE_FUNCTION(tanh_each, std::tanh, tanh_of)
ANYSCORE_FUNCTION(erf_each, std::erf, erf_lane)
#undef ANYSCORE_LAMBDA_INLINE
#undef ANYSCORE_FUNCTION

}  // namespace anyscore::ANYSCORE_ISA
