// log(1 + x) of single numbers, as tanh_of.h.
#pragma once

#include "vector.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> struct Log;
template <> struct Log<float> {
    static constexpr int TERMS = 5;
    static constexpr std::uint32_t ROOT_HALF = 0x3f3504f3u;  // √½, as bits
    static constexpr float TWO_TO_MANTISSA = 8388608.0f;
};
template <> struct Log<double> {
    static constexpr int TERMS = 11;
    static constexpr std::uint64_t ROOT_HALF = 0x3fe6a09e667f3bcdu;
    static constexpr double TWO_TO_MANTISSA = 4503599627370496.0;
};

// 2/(2 FROM + 1) + 2 z/(2 FROM + 3) + …, up to the term of TO.
template <class T, int FROM, int TO> ANYSCORE_INLINE T atanh_series(T z) {
    constexpr T factor = T(2.0 / (2 * FROM + 1));
    if constexpr (FROM == TO)
        return factor;
    else
        return factor + z * atanh_series<T, FROM + 1, TO>(z);
}

// log(1 + x) for x ≥ 0: a few ulp, ∞ for ∞ and NaN for NaN. With y = 1 + x = 2ⁿ · m, √½ ≤ m < √2, it is
// n log 2 + 2 atanh((m − 1)/(m + 1)), and what the rounding of y lost, relative to y.
template <class T> ANYSCORE_INLINE T log1p_of(T x) {
    using U = typename Bits<T>::Unsigned;
    using L = Log<T>;
    T y = T(1) + x;
    T lost = (x < T(1) ? x - (y - T(1)) : T(1) - (y - x)) / y;
    U exponent = (bits(y) - L::ROOT_HALF) >> Bits<T>::MANTISSA;
    T n = from_bits<T>(bits(L::TWO_TO_MANTISSA) | exponent) - L::TWO_TO_MANTISSA;
    T f = from_bits<T>(bits(y) - (exponent << Bits<T>::MANTISSA)) - T(1);
    T s = f / (f + T(2));
    T of_m = s * atanh_series<T, 0, L::TERMS>(s * s);
    T found = n * Exp<T>::LN2_HIGH + (of_m + (n * Exp<T>::LN2_LOW + lost));
    return (bits(x) << 1) >= (Bits<T>::INFINITE << 1) ? x : found;
}

}  // namespace anyscore::ANYSCORE_ISA
