// The elementwise functions of two features. A new one is a `value` and a `gradient`, written once
// for scalars and for vectors; see tests/core for one made up on the spot.
#pragma once

#include <cmath>
#include <type_traits>

#include "simd/vector.h"

namespace anyscore::ANYSCORE_ISA {

// The number c as a scalar, or in every lane.
template <class V> ANYSCORE_INLINE V constant(double c) {
    if constexpr (std::is_arithmetic_v<V>)
        return V(c);
    else
        return V{} + ElementOf<V>(c);
}

// gradient: the value, and its derivatives with respect to a and b.
struct Product {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return a * b; }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        value = a * b, da = b, db = a;
    }
};

// Parts, for split.h: w · pair(a, b) = w · of_query(a) + w · of_key(b) + weight(w) · value(query(a, w), b), without
// the last weight if IS_PRODUCT. IS_DISTANCE: no pair is negative. With z = join(gradient_query(a), b), never −0, the
// derivatives are BY_A and BY_B times slope(1, z), and the pair is BY_W · z · slope(1, z).
struct LeakyRelu {
    // 0.2 (a + b) + 0.8 max(a + b, 0), and max(a + b, 0) = b − min(−a, b).
    struct Parts {
        static constexpr bool IS_PRODUCT = false, IS_DISTANCE = false;
        static constexpr int LIMIT = 16;
        template <class T> static constexpr T FACTOR_A = 1;
        template <class T> static constexpr T FACTOR_B = 1;
        template <class T> static constexpr T FACTOR_W = -1;
        template <class V> static ANYSCORE_INLINE V of_query(V a) { return a * constant<V>(0.2); }
        template <class V> static ANYSCORE_INLINE V of_key(V b) { return b; }
        template <class V> static ANYSCORE_INLINE V query(V a, V) { return -a; }
        template <class V> static ANYSCORE_INLINE V weight(V w) { return w * constant<V>(-0.8); }
        template <class V> static ANYSCORE_INLINE V value(V a, V b) { return min(a, b); }
        template <class V> static ANYSCORE_INLINE V gradient_query(V a) { return without_negative_zeros(-a); }
        template <class V> static ANYSCORE_INLINE V join(V a, V b) { return a - b; }
        template <class V> static ANYSCORE_INLINE V slope(V g, V z) {
            return g * where_negative(z, constant<V>(1), constant<V>(0.2));
        }
    };
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
    // 2 max(a, b) − a − b.
    struct Parts {
        static constexpr bool IS_PRODUCT = false, IS_DISTANCE = true;
        static constexpr int LIMIT = 16;
        template <class T> static constexpr T FACTOR_A = 1 / SIGN<T>;
        template <class T> static constexpr T FACTOR_B = -FACTOR_A<T>;
        template <class T> static constexpr T FACTOR_W = FACTOR_A<T>;
        template <class V> static ANYSCORE_INLINE V of_query(V a) { return -a; }
        template <class V> static ANYSCORE_INLINE V of_key(V b) { return -b; }
        template <class V> static ANYSCORE_INLINE V query(V a, V) { return a; }
        template <class V> static ANYSCORE_INLINE V weight(V w) { return w + w; }
        template <class V> static ANYSCORE_INLINE V value(V a, V b) { return max(a, b); }
        template <class V> static ANYSCORE_INLINE V join(V a, V b) { return a - b; }
        template <class V> static ANYSCORE_INLINE V gradient_query(V a) { return without_negative_zeros(a); }
        template <class V> static ANYSCORE_INLINE V slope(V g, V z) { return times_sign(g, z); }
    };
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return abs(a - b); }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        V x = a - b, zero = constant<V>(0);
        da = x > zero ? constant<V>(1) : x < zero ? constant<V>(-1) : x;  // 0, or NaN
        db = -da;
        value = abs(x);
    }
};

struct Squared {
    // a² + b² − 2ab.
    struct Parts {
        static constexpr bool IS_PRODUCT = true, IS_DISTANCE = true;
        static constexpr int LIMIT = 12;
        template <class T> static constexpr T FACTOR_A = 2;
        template <class T> static constexpr T FACTOR_B = -2;
        template <class T> static constexpr T FACTOR_W = 1;
        template <class V> static ANYSCORE_INLINE V of_query(V a) { return a * a; }
        template <class V> static ANYSCORE_INLINE V of_key(V b) { return b * b; }
        template <class V> static ANYSCORE_INLINE V query(V a, V w) { return a * w * constant<V>(-2); }
        template <class V> static ANYSCORE_INLINE V weight(V w) { return w; }
        template <class V> static ANYSCORE_INLINE V value(V a, V b) { return a * b; }
        template <class V> static ANYSCORE_INLINE V join(V a, V b) { return a - b; }
        template <class V> static ANYSCORE_INLINE V gradient_query(V a) { return a; }
        template <class V> static ANYSCORE_INLINE V slope(V g, V z) { return g * z; }
    };
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return (a - b) * (a - b); }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        V x = a - b;
        da = x + x, db = -da;
        value = x * x;
    }
};

// Whether no term is finite of a key that is not: then scores tell that there is one, and no key has to be looked at.
template <class Pair> constexpr bool SHOWS_NONFINITE = false;
template <> inline constexpr bool SHOWS_NONFINITE<Product> = true;
template <> inline constexpr bool SHOWS_NONFINITE<LeakyRelu> = true;
template <> inline constexpr bool SHOWS_NONFINITE<Absolute> = true;
template <> inline constexpr bool SHOWS_NONFINITE<Squared> = true;

// Only the formula, for what is not finite or huge: tanh.h has the fast form.
struct TanhOfSum {
    template <class T> static T value(T a, T b) { return std::tanh(a + b); }
    template <class T> static void gradient(T a, T b, T& value, T& da, T& db) {
        value = std::tanh(a + b);
        da = db = (T(1) - value) * (T(1) + value);
    }
};

}  // namespace anyscore::ANYSCORE_ISA
