// tanh of numbers that are few beside a tile's elements: of scores, not of their terms.
#pragma once

#include "simd/vector.h"

namespace anyscore::ANYSCORE_ISA {

// Returns tanh x = m/(m + 2) with m = e^(2|x|) − 1, and the sign of x: a few ulp for any x, 0 for 0, ±1 for ±∞, NaN
// for NaN. The compiler vectorises a loop of it.
template <class T> ANYSCORE_INLINE T tanh_of(T x) {
    using U = typename Bits<T>::Unsigned;
    constexpr U SIGN = ~(~U(0) >> 1);
    constexpr T END = sizeof(T) == 4 ? 10 : 20;  // |x| from which tanh is 1
    U magnitude = bits(x) & ~SIGN;
    // By bits: the compiler assumes that no comparison meets NaN.
    U within = magnitude < bits(END) ? magnitude : bits(END);
    T twice = from_bits<T>(within) + from_bits<T>(within);
    T m = expm1_clamped(twice);
    U y = bits(m / (m + T(2))) | (bits(x) & SIGN);
    return from_bits<T>(magnitude > Bits<T>::INFINITE ? bits(x) : y);
}

}  // namespace anyscore::ANYSCORE_ISA
