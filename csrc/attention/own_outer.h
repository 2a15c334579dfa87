// The frame around an outer function that is compiled after the core, for one instruction set and one type of the sums.
// Generated code defines ANYSCORE_ISA, ANYSCORE_SUMS and the function, Own of a alone, and includes this file.
#pragma once

#include "runtime/call.h"
#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// Returns φ(x), and writes dφ/dx to `slope`, if it is not null. V: one number, or LANES of them.
template <class V> ANYSCORE_INLINE V own_outer(V x, V* slope) {
    V value, none;
    if (slope)
        Own::gradient(x, x, value, *slope, none);
    else
        value = Own::value(x, x);
    return value;
}

}  // namespace anyscore::ANYSCORE_ISA

extern "C" __attribute__((visibility("default"))) void anyscore_own_outer(void* x, void* slopes, int count) {
    using namespace anyscore::ANYSCORE_ISA;
    using T = ANYSCORE_SUMS;
    constexpr int L = LANES<T>;
    static_assert(anyscore::TILE % L == 0);
    for (int j = 0; j < count; j += L) {
        T *s = (T*)x + j, *d = slopes ? (T*)slopes + j : nullptr;
        if (largest_bits(s, L) < Bits<T>::INFINITE) {
            Vector<T> slope;
            store(s, own_outer(load(s), d ? &slope : nullptr));
            if (d) store(d, slope);
        } else {  // vectors hold finite numbers
            for (int l = 0; l < L; l++) s[l] = own_outer(s[l], d ? d + l : nullptr);
        }
    }
}
