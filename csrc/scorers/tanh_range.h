// tanh(a + b) by exponentials made once per row: the form that each feature allows, from the range of its keys.
//
// A centre is an integer near the middle of a feature's keys: a + b = a' + b' with a' = a + centre, b' = b − centre.
// Each feature has one of three forms; docs/numerics.md derives them:
//
//     form      condition on the keys of a call                 stored for a query         stored for a key
//     ORDINARY  all |b'| ≤ NARROW                               e^(2a')                    e^(2b')
//     SMALL     all |b'| ≤ 1, in a GROUP of features            e^(2a') and e^(2a') − 1    e^(2b') − 1
//     WIDE      else; the centre is 0                           mantissa and exponent of e^(2a), and of e^(2b)
//
//     form      tanh                                            reason
//     ORDINARY  1 − 2/(1 + e^(2a') e^(2b'))                     one multiply-add and one division for each element
//     SMALL     u/(u + 2), u = e^(2a') (e^(2b') − 1) + e^(2a') − 1    keeps the digits of a tanh near 0
//     WIDE      as ORDINARY, of mantissa · 2^exponent           e^(2b) alone would overflow or vanish
#pragma once

#include "scorers/pairs.h"
#include "scorers/scorer.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> struct TanhLimits;
template <> struct TanhLimits<float> {
    // C = w_max/|w| is at most this: a smaller weight is below the rounding of a score.
    static constexpr float C_MAX = 0x1p26f;
    // Largest |b − centre| of a feature that is not wide: e^(2b') is a normal number.
    static constexpr float NARROW = 32.0f;
    // Rows with a larger |a| or |b| are irregular: their exponents would lose digits.
    static constexpr float HUGE_INPUT = 0x1p20f;
    // Exponents of 2 are clamped to these: tanh is ±1 beyond them.
    static constexpr float MAX_EXPONENT = 33.0f, MIN_EXPONENT = -60.0f;
    // Largest e^(2a) of a small feature, and e^(2b): tanh is ±1 from there on.
    static constexpr float MAX_SMALL = 0x1p28f;
};
template <> struct TanhLimits<double> {
    static constexpr double C_MAX = 0x1p55, NARROW = 320.0, HUGE_INPUT = 0x1p40;
    static constexpr double MAX_EXPONENT = 440.0, MIN_EXPONENT = -900.0, MAX_SMALL = 0x1p60;
};

// Splits e^(2x) into mantissa · 2^exponent, for |x| ≤ HUGE_INPUT.
template <class T> ANYSCORE_INLINE void split(T x, T& mantissa, T& exponent) {
    using E = Exp<double>;
    double y = 2.0 * double(x), t = y * E::LOG2_E + Bits<double>::ROUND, n = t - Bits<double>::ROUND;
    double r = (y - n * E::LN2_HIGH) - n * E::LN2_LOW;
    mantissa = T(1.0 + r * series<double, 1, E::DEGREE>(r));
    exponent = T(n);
}
#if defined(__FMA__)
// A fused multiply-add with 2 log₂ e in two parts is as exact as the double above.
ANYSCORE_INLINE void split(float x, float& mantissa, float& exponent) {
    constexpr float HIGH = 2.88539008f, LOW = 3.851926066e-8f;
    float t = x * HIGH + Bits<float>::ROUND, n = t - Bits<float>::ROUND;
    float r = (__builtin_fmaf(x, HIGH, -n) + x * LOW) * 0.693147181f;
    mantissa = 1 + r * series<float, 1, Exp<float>::DEGREE>(r);
    exponent = n;
}
#endif

// Returns x · 2ⁿ for x of about 1 and n from −126 to 126; for double from −1021 to 1021.
template <class T> ANYSCORE_INLINE Vector<T> times_power_within(Vector<T> x, Vector<T> n) {
    typedef typename Bits<T>::Unsigned U __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    return (Vector<T>)((U)x + ((U)(n + Bits<T>::ROUND) << Bits<T>::MANTISSA));
}

// Returns x · 2ⁿ for any n, clamped to the exponents where tanh still changes.
template <class T> ANYSCORE_INLINE Vector<T> times_power_clamped(Vector<T> x, Vector<T> n) {
    n = min(n, fill(TanhLimits<T>::MAX_EXPONENT));
    return times_power_within<T>(x, max(n, fill(TanhLimits<T>::MIN_EXPONENT)));
}

// Returns x · 2ⁿ for any n: 2ⁿ is ∞ from n = 128 on and 0 from −127 down; for double from 1024 and −1023.
template <class T> ANYSCORE_INLINE Vector<T> times_power_saturated(Vector<T> x, Vector<T> n) {
    typedef typename Bits<T>::Unsigned U __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    constexpr T BIAS = sizeof(T) == 4 ? 127 : 1023;
    n = max(min(n, fill(BIAS + 1)), fill(-BIAS)) + (Bits<T>::ROUND + BIAS);
    return x * (Vector<T>)((U)n << Bits<T>::MANTISSA);
}

// The Range of a scorer (scorer.h): three arrays of `padded` numbers, which give each feature its form.
template <class T> struct TanhRange {
    const T* centre = nullptr;  // integers
    const T* wide = nullptr;  // 1 for a wide feature, else 0
    const T* small = nullptr;  // 1 for a small feature, else 0
    bool any_wide = false;

    // The largest |b − centre| of a small feature.
    static constexpr T SMALL = 1;
    // At least the lanes of any vector, so that every instruction set finds the same features small.
    static constexpr Size GROUP = 16;
    static Size size(Size padded) { return 3 * padded; }

    TanhRange() = default;
    TanhRange(const T* numbers, Size padded) : centre(numbers), wide(numbers + padded), small(numbers + 2 * padded) {
        T wides = 0;
        for (Size d = 0; d < padded; d++) wides = max(wides, wide[d]);
        any_wide = wides > 0;
    }

    bool takes(const T* row, Size padded) const {
        bool all = true;
        for (Size d = 0; d < padded; d++) {
            T reach = abs(row[d] - centre[d]);
            all &= wide[d] > 0 || reach <= (small[d] > 0 ? SMALL : TanhLimits<T>::NARROW);
        }
        return all;
    }

    // Writes the numbers from the largest |b| of each feature. Returns whether no feature reaches beyond NARROW: then
    // a centre of 0 serves all.
    static bool from_largest(const T* most, Size padded, T* numbers) {
        bool narrow = true;
        for (Size d = 0; d < padded; d++) {
            narrow &= most[d] <= TanhLimits<T>::NARROW;
            numbers[d] = numbers[padded + d] = 0;
            numbers[2 * padded + d] = most[d] <= SMALL ? T(1) : T(0);
        }
        share(numbers + 2 * padded, padded);
        return narrow;
    }

    // Writes the numbers from the lowest and the highest b of each feature. A wide feature has no centre: subtracting
    // one would cost digits.
    static void from_ends(const T* low, const T* high, Size padded, T* numbers) {
        for (Size d = 0; d < padded; d++) {
            T most = max(abs(low[d]), abs(high[d])), middle = low[d] + (high[d] - low[d]) / 2;
            T centre = most <= TanhLimits<T>::NARROW ? T(0) : (middle + Bits<T>::ROUND) - Bits<T>::ROUND;
            T reach = max(high[d] - centre, centre - low[d]);
            bool wide = reach > TanhLimits<T>::NARROW;
            numbers[d] = wide ? T(0) : centre;
            numbers[padded + d] = wide ? T(1) : T(0);
            numbers[2 * padded + d] = reach <= SMALL ? T(1) : T(0);
        }
        share(numbers + 2 * padded, padded);
    }

    // The header row of packed keys codes a form in one number: the centre (an integer), plus ½ for a wide feature,
    // plus ¼ for a small one.
    static void pack(const T* numbers, Size width, Size padded, T* row) {
        for (Size d = 0; d < width; d++) row[d] = numbers[d] + numbers[padded + d] / 2 + numbers[2 * padded + d] / 4;
    }
    static void unpack(const T* row, Size width, Size padded, T* numbers) {
        for (Size d = 0; d < width; d++) {
            T x = row[d], whole = (x - T(0.25) + Bits<T>::ROUND) - Bits<T>::ROUND;
            numbers[d] = whole, numbers[padded + d] = x - whole == T(0.5) ? T(1) : T(0);
            numbers[2 * padded + d] = x - whole == T(0.25) ? T(1) : T(0);
        }
        for (Size d = width; d < padded; d++)  // padding takes the form of the feature before it
            numbers[d] = numbers[padded + d] = 0, numbers[2 * padded + d] = numbers[2 * padded + d - 1];
    }

private:
    // A feature stays small only if its whole group is small: a vector of features has one form.
    static void share(T* small, Size padded) {
        for (Size from = 0; from < padded; from += GROUP) {
            T all = 1;
            Size to = from + remaining(padded, from, GROUP);
            for (Size d = from; d < to; d++) all = min(all, small[d]);
            for (Size d = from; d < to; d++) small[d] = all;
        }
    }
};

}  // namespace anyscore::ANYSCORE_ISA
