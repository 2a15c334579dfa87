// The pairs: elementwise functions of a query's and a key's number. A new pair is a `value` and a `gradient`, written
// once for scalars and for vectors; tests/core/test_new_pair.py adds one.
#pragma once

#include <cmath>
#include <type_traits>

#include "simd/vector.h"

namespace anyscore::ANYSCORE_ISA {

// Returns c as a scalar, or in every lane of a vector.
template <class V> ANYSCORE_INLINE V constant(double c) {
    if constexpr (std::is_arithmetic_v<V>)
        return V(c);
    else
        return V{} + ElementOf<V>(c);
}

// gradient: writes the value, and its derivatives with respect to a and b.
struct Product {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return a * b; }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        value = a * b, da = b, db = a;
    }
};

// Parts are for split.h, which has an example. With a weight w,
//
//     w · pair(a, b) = w · of_query(a) + w · of_key(b) + weight(w) · value(query(a, w), b)
//
// without the factor weight(w) if IS_PRODUCT, whose `query` includes it. IS_DISTANCE: no pair is negative. LIMIT: see
// split.h. Gradients take z = join(gradient_query(a), b), which is never −0:
//
//     ∂pair/∂a = FACTOR_A · slope(1, z)    ∂pair/∂b = FACTOR_B · slope(1, z)    pair = FACTOR_W · z · slope(1, z)
struct LeakyRelu {
    // leaky(a + b) = 0.2 (a + b) + 0.8 max(a + b, 0), and max(a + b, 0) = b − min(−a, b).
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
    // |a − b| = 2 max(a, b) − a − b.
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
    // (a − b)² = a² + b² − 2ab.
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

// Whether every term of a number that is not finite is not finite either. Then scores show such a key, and no key has
// to be checked.
template <class Pair> constexpr bool SHOWS_NONFINITE = false;
template <> inline constexpr bool SHOWS_NONFINITE<Product> = true;
template <> inline constexpr bool SHOWS_NONFINITE<LeakyRelu> = true;
template <> inline constexpr bool SHOWS_NONFINITE<Absolute> = true;
template <> inline constexpr bool SHOWS_NONFINITE<Squared> = true;

// The formula of tanh alone, for irregular rows: not finite, or huge. tanh.h has the fast form.
struct TanhOfSum {
    template <class T> static T value(T a, T b) { return std::tanh(a + b); }
    template <class T> static void gradient(T a, T b, T& value, T& da, T& db) {
        value = std::tanh(a + b);
        da = db = (T(1) - value) * (T(1) + value);
    }
};

}  // namespace anyscore::ANYSCORE_ISA
