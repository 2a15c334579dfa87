// Vectors of one register, and the exponential. Each instruction set compiles these functions in its own namespace:
// the linker must not share one among two sets.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#define ANYSCORE_VECTOR_BYTES 64
#elif defined(__AVX__)
#define ANYSCORE_VECTOR_BYTES 32
#else
#define ANYSCORE_VECTOR_BYTES 16
#endif
#define ANYSCORE_INLINE inline __attribute__((always_inline))
// For a function that needs all registers, or runs once for a row or a tile: the compiler keeps one copy of it.
#define ANYSCORE_NOINLINE __attribute__((noinline))

namespace anyscore::ANYSCORE_ISA {

template <class T> constexpr int LANES = ANYSCORE_VECTOR_BYTES / int(sizeof(T));

template <class T> struct VectorOf {
    typedef T type __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    typedef T anywhere __attribute__((vector_size(ANYSCORE_VECTOR_BYTES), may_alias, aligned(alignof(T))));
};
template <class T> using Vector = typename VectorOf<T>::type;

template <class T> struct Bits;
template <> struct Bits<float> {
    using Unsigned = std::uint32_t;
    using Signed = std::int32_t;
    static constexpr Unsigned INFINITE = 0x7f800000u;
    static constexpr int MANTISSA = 23;
    static constexpr float ROUND = 12582912.0f;  // 1.5 · 2²³: adding it rounds to an integer
};
template <> struct Bits<double> {
    using Unsigned = std::uint64_t;
    using Signed = std::int64_t;
    static constexpr Unsigned INFINITE = 0x7ff0000000000000u;
    static constexpr int MANTISSA = 52;
    static constexpr double ROUND = 6755399441055744.0;  // 1.5 · 2⁵²
};

template <class T> ANYSCORE_INLINE Vector<T> load(const T* x) { return *(const typename VectorOf<T>::anywhere*)x; }
template <class T> ANYSCORE_INLINE void store(T* x, Vector<T> v) { *(typename VectorOf<T>::anywhere*)x = v; }
template <class T, std::size_t... I> ANYSCORE_INLINE Vector<T> fill_lanes(T x, std::index_sequence<I...>) {
    return Vector<T>{((void)I, x)...};
}
template <class T> ANYSCORE_INLINE Vector<T> fill(T x) { return fill_lanes(x, std::make_index_sequence<LANES<T>>()); }

// min, max and abs of scalars and of vectors, so that a pair is written once for both.
template <class V> ANYSCORE_INLINE V min(V x, V y) { return x < y ? x : y; }
template <class V> ANYSCORE_INLINE V max(V x, V y) { return x > y ? x : y; }
template <class V> ANYSCORE_INLINE V abs(V x) { return max(x, -x); }

template <class T> ANYSCORE_INLINE typename Bits<T>::Unsigned bits(T x) {
    typename Bits<T>::Unsigned u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}
template <class T> ANYSCORE_INLINE T from_bits(typename Bits<T>::Unsigned u) {
    T x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}

template <class V> using ElementOf = std::remove_reference_t<decltype(V{}[0])>;
template <class V> using UnsignedOf = typename VectorOf<typename Bits<ElementOf<V>>::Unsigned>::type;
template <class V> using SignedOf = typename VectorOf<typename Bits<ElementOf<V>>::Signed>::type;

// Returns x with 0 for every −0.
template <class V> ANYSCORE_INLINE V without_negative_zeros(V x) { return (UnsignedOf<V>)x << 1 != 0 ? x : V{}; }

// Returns yes where z is negative, else no, by the sign bit without a comparison; z is not −0.
template <class V> ANYSCORE_INLINE V where_negative(V z, V yes, V no) { return (SignedOf<V>)z < 0 ? yes : no; }

// Returns SIGN · g, −SIGN · g or 0 for z positive, negative or 0; z is not −0. AVX2 has an instruction that negates
// integers by a sign: the bits of 2.0f, negated as an integer, are those of −2.0f. So SIGN is 2 there.
#if ANYSCORE_VECTOR_BYTES == 32 && defined(__AVX2__)
template <class T> constexpr T SIGN = sizeof(T) == 4 ? 2 : 1;
#else
template <class T> constexpr T SIGN = 1;
#endif
template <class V> ANYSCORE_INLINE V times_sign(V g, V z) {
    using T = ElementOf<V>;
#if ANYSCORE_VECTOR_BYTES == 32 && defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return g * (V)__builtin_ia32_psignd256((SignedOf<V>)(V{} + SIGN<T>), (SignedOf<V>)z);
#endif
    const V product = (V)((UnsignedOf<V>)g ^ ((UnsignedOf<V>)z & ~(~typename Bits<T>::Unsigned(0) >> 1)));
    return z != 0 ? product : V{};
}

// The kernels are compiled for finite arithmetic: only bits tell NaN and ∞ from numbers.
template <class T> ANYSCORE_INLINE bool is_nan(T x) { return (bits(x) << 1) > (Bits<T>::INFINITE << 1); }
template <class T> ANYSCORE_INLINE T nan() { return from_bits<T>(Bits<T>::INFINITE | (Bits<T>::INFINITE >> 1)); }
template <class T> ANYSCORE_INLINE T minus_infinity() { return from_bits<T>(~(~Bits<T>::INFINITE << 1 >> 1)); }

// Returns the sum of the lanes, in a fixed order.
template <class T> ANYSCORE_INLINE T sum_lanes(Vector<T> v) {
    T lanes[LANES<T>];
    store(lanes, v);
    for (int n = LANES<T> / 2; n >= 1; n /= 2)
        for (int l = 0; l < n; l++) lanes[l] += lanes[l + n];
    return lanes[0];
}

template <class T> ANYSCORE_INLINE T largest_lane(Vector<T> v) {
    T lanes[LANES<T>];
    store(lanes, v);
    for (int n = LANES<T> / 2; n >= 1; n /= 2)
        for (int l = 0; l < n; l++) lanes[l] = max(lanes[l], lanes[l + n]);
    return lanes[0];
}

// Returns the sum of N vectors, pairwise.
template <int N, class V> ANYSCORE_INLINE V sum(const V* x) {
    if constexpr (N == 1)
        return x[0];
    else
        return sum<N / 2>(x) + sum<N - N / 2>(x + N / 2);
}

// Returns the lanes LANE… of x and, counted from LANES on, of y.
template <class T, int... LANE> ANYSCORE_INLINE Vector<T> shuffle(Vector<T> x, Vector<T> y) {
#if defined(__clang__)
    return __builtin_shufflevector(x, y, LANE...);
#else
    typedef typename Bits<T>::Signed Index __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    return __builtin_shuffle(x, y, Index{LANE...});
#endif
}

// Returns, of every PART lanes of x and y, the lanes from FIRST on, alternating.
template <class T, int PART, int FIRST, std::size_t... I>
ANYSCORE_INLINE Vector<T> interleave(Vector<T> x, Vector<T> y, std::index_sequence<I...>) {
    return shuffle<T, (int(I) / PART * PART + FIRST + int(I) % PART / 2 + int(I) % 2 * LANES<T>)...>(x, y);
}

// Transposes every PART lanes of PART registers, by perfect shuffles.
template <class T, int PART> ANYSCORE_INLINE void transpose_parts(Vector<T>* rows) {
    constexpr std::make_index_sequence<LANES<T>> lanes;
    for (int step = PART; step > 1; step /= 2) {
        Vector<T> shuffled[PART];
        for (int i = 0; i < PART / 2; i++) {
            shuffled[2 * i] = interleave<T, PART, 0>(rows[i], rows[i + PART / 2], lanes);
            shuffled[2 * i + 1] = interleave<T, PART, PART / 2>(rows[i], rows[i + PART / 2], lanes);
        }
        for (int i = 0; i < PART; i++) rows[i] = shuffled[i];
    }
}

// Returns the halves of x and y from lane FIRST on, side by side.
template <class T, int FIRST, std::size_t... I>
ANYSCORE_INLINE Vector<T> join_halves(Vector<T> x, Vector<T> y, std::index_sequence<I...>) {
    constexpr int HALF = LANES<T> / 2;
    return shuffle<T, (FIRST + int(I) % HALF + int(I) / HALF * LANES<T>)...>(x, y);
}

// Transposes a square of registers. AVX2 needs two instructions where a lane crosses halves, unless halves move as a
// whole.
template <class T> ANYSCORE_INLINE void transpose(Vector<T>* rows) {
    constexpr int N = LANES<T>, HALF = N / 2;
    constexpr std::make_index_sequence<N> lanes;
    if constexpr (ANYSCORE_VECTOR_BYTES != 32) {
        transpose_parts<T, N>(rows);
        return;
    }
    transpose_parts<T, HALF>(rows), transpose_parts<T, HALF>(rows + HALF);
    for (int i = 0; i < HALF; i++) {
        const Vector<T> x = rows[i], y = rows[i + HALF];
        rows[i] = join_halves<T, 0>(x, y, lanes), rows[i + HALF] = join_halves<T, HALF>(x, y, lanes);
    }
}

template <class T> struct Exp;
template <> struct Exp<float> {
    static constexpr int DEGREE = 7, DEGREE_M1 = 12;
    static constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    static constexpr float LIMIT = 87.0f;  // e^±LIMIT is a normal number
};
template <> struct Exp<double> {
    static constexpr int DEGREE = 13, DEGREE_M1 = 20;
    static constexpr double LOG2_E = 1.4426950408889634, LN2_HIGH = 6.93147180369123816490e-01,
                            LN2_LOW = 1.90821492927058770002e-10;
    static constexpr double LIMIT = 708.0;
};

// Returns Σ xⁿ⁻¹/n! for n = FROM … TO, of a number or of every lane: eˣ = 1 + x · series<T, 1, TO>(x).
template <class T, int FROM, int TO, class V> ANYSCORE_INLINE V series(V x) {
    constexpr T factor = [] {
        double product = 1;
        for (int n = 2; n <= FROM; n++) product *= n;
        return T(1 / product);
    }();
    if constexpr (FROM == TO)
        return V{} + factor;
    else
        return factor + x * series<T, FROM + 1, TO>(x);
}

// Returns eˣ for |x| ≤ LIMIT, to about 1 ulp: eˣ = 2ⁿ · eʳ, |r| ≤ ln 2 / 2.
template <class T> ANYSCORE_INLINE T exp_within(T x) {
    using E = Exp<T>;
    T t = x * E::LOG2_E + Bits<T>::ROUND, n = t - Bits<T>::ROUND;
    T r = (x - n * E::LN2_HIGH) - n * E::LN2_LOW;
    T power = T(1) + r * series<T, 1, E::DEGREE>(r);
    return from_bits<T>(bits(power) + (bits(t) << Bits<T>::MANTISSA));
}

// Returns eˣ, clamped to e^±LIMIT.
template <class T> ANYSCORE_INLINE T exp_clamped(T x) { return exp_within(max(min(x, Exp<T>::LIMIT), -Exp<T>::LIMIT)); }

// Returns eˣ; ∞ above LIMIT, 0 below −LIMIT.
template <class T> ANYSCORE_INLINE T exp_saturated(T x) {
    T power = exp_clamped(x);
    power = x > Exp<T>::LIMIT ? from_bits<T>(Bits<T>::INFINITE) : power;
    return x < -Exp<T>::LIMIT ? T(0) : power;
}

// Returns eˣ for x ≤ LIMIT; 0 below −LIMIT.
template <class T> ANYSCORE_INLINE T exp_or_zero(T x) {
    T power = exp_within(max(x, -Exp<T>::LIMIT));
    return x < -Exp<T>::LIMIT ? T(0) : power;
}

// Returns eˣ − 1, accurate near 0; eˣ is clamped to e^±LIMIT.
template <class T> ANYSCORE_INLINE T expm1_clamped(T x) {
    T within = max(min(x, T(1)), T(-1));
    T near = within * series<T, 1, Exp<T>::DEGREE_M1>(within), far = exp_clamped(x) - T(1);
    return abs(x) < T(1) ? near : far;
}

// The same functions of every lane: compilers differ in how they vectorise a loop over lanes.
template <class T> ANYSCORE_INLINE Vector<T> exp_within(Vector<T> x) {
    using E = Exp<T>;
    typedef typename Bits<T>::Unsigned Unsigned __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    Vector<T> t = x * E::LOG2_E + Bits<T>::ROUND, n = t - Bits<T>::ROUND;
    Vector<T> r = (x - n * E::LN2_HIGH) - n * E::LN2_LOW;
    Vector<T> power = T(1) + r * series<T, 1, E::DEGREE>(r);
    return (Vector<T>)((Unsigned)power + ((Unsigned)t << Bits<T>::MANTISSA));
}
template <class T> ANYSCORE_INLINE Vector<T> exp_clamped(Vector<T> x) {
    return exp_within<T>(max(min(x, fill(Exp<T>::LIMIT)), fill(-Exp<T>::LIMIT)));
}
template <class T> ANYSCORE_INLINE Vector<T> exp_saturated(Vector<T> x) {
    Vector<T> power = exp_clamped<T>(x);
    power = x > fill(Exp<T>::LIMIT) ? fill(from_bits<T>(Bits<T>::INFINITE)) : power;
    return x < fill(-Exp<T>::LIMIT) ? Vector<T>{} : power;
}
template <class T> ANYSCORE_INLINE Vector<T> exp_or_zero(Vector<T> x) {
    Vector<T> power = exp_within<T>(max(x, fill(-Exp<T>::LIMIT)));
    return x < fill(-Exp<T>::LIMIT) ? Vector<T>{} : power;
}
template <class T> ANYSCORE_INLINE Vector<T> expm1_clamped(Vector<T> x) {
    Vector<T> within = max(min(x, fill<T>(1)), fill<T>(-1));
    Vector<T> near = within * series<T, 1, Exp<T>::DEGREE_M1>(within), far = exp_clamped<T>(x) - T(1);
    return abs(x) < fill<T>(1) ? near : far;
}

}  // namespace anyscore::ANYSCORE_ISA
