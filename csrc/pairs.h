// The elementwise functions of two features. A new one is a `value` and a `gradient`, written once
// for scalars and for vectors; see tests/core for one made up on the spot.
#pragma once

#include <cmath>
#include <type_traits>

#include "vector.h"

namespace anyscore::ANYSCORE_ISA {

// The number c as a scalar, or in every lane.
template <class V> ANYSCORE_INLINE V constant(double c) {
    if constexpr (std::is_arithmetic_v<V>)
        return V(c);
    else
        return V{} + std::remove_reference_t<decltype(V{}[0])>(c);
}

// gradient: the value, and its derivatives with respect to a and b.
struct Product {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return a * b; }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        value = a * b, da = b, db = a;
    }
};

struct LeakyRelu {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) {
        V x = a + b;
        return max(x, x * constant<V>(0.2));
    }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        V x = a + b;
        da = db = x > constant<V>(0) ? constant<V>(1) : constant<V>(0.2);
        value = x * da;
    }
};

struct Absolute {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return abs(a - b); }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        V x = a - b, zero = constant<V>(0);
        da = x > zero ? constant<V>(1) : x < zero ? constant<V>(-1) : x;  // 0, or NaN
        db = -da;
        value = abs(x);
    }
};

struct Squared {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return (a - b) * (a - b); }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        V x = a - b;
        da = x + x, db = -da;
        value = x * x;
    }
};

// Only the formula, for what is not finite or huge: tanh.h has the fast form.
struct TanhOfSum {
    template <class T> static T value(T a, T b) { return std::tanh(a + b); }
    template <class T> static void gradient(T a, T b, T& value, T& da, T& db) {
        value = std::tanh(a + b);
        da = db = (T(1) - value) * (T(1) + value);
    }
};

}  // namespace anyscore::ANYSCORE_ISA
