// tanh(a + b) by exponentials made once per row: which form of them each feature allows.
#pragma once

#include "scorers/pairs.h"
#include "scorers/scorer.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> struct TanhLimits;
template <> struct TanhLimits<float> {
    static constexpr float C_MAX = 0x1p26f;  // what weighs less than this part of w_max weighs nothing
    static constexpr float NARROW = 32.0f;  // |b − centre| up to which e^(2b) is an ordinary number
    static constexpr float HUGE_INPUT = 0x1p20f;  // |a|, |b| beyond which exponents lose digits
    static constexpr float MAX_EXPONENT = 33.0f, MIN_EXPONENT = -60.0f;  // beyond, tanh is ±1
    static constexpr float MAX_SMALL = 0x1p28f;  // on e^(2a) and e^(2b) where b is small: tanh is ±1 from there
};
template <> struct TanhLimits<double> {
    static constexpr double C_MAX = 0x1p55, NARROW = 320.0, HUGE_INPUT = 0x1p40;
    static constexpr double MAX_EXPONENT = 440.0, MIN_EXPONENT = -900.0, MAX_SMALL = 0x1p60;
};

// e^(2x) = mantissa · 2^exponent, for |x| up to HUGE_INPUT.
template <class T> ANYSCORE_INLINE void split(T x, T& mantissa, T& exponent) {
    using E = Exp<double>;
    double y = 2.0 * double(x), t = y * E::LOG2_E + Bits<double>::ROUND, n = t - Bits<double>::ROUND;
    double r = (y - n * E::LN2_HIGH) - n * E::LN2_LOW;
    mantissa = T(1.0 + r * series<double, 1, E::DEGREE>(r));
    exponent = T(n);
}
#if defined(__FMA__)
// 2 log₂ e in two parts and a fused multiply-add do what double does above.
ANYSCORE_INLINE void split(float x, float& mantissa, float& exponent) {
    constexpr float HIGH = 2.88539008f, LOW = 3.851926066e-8f;
    float t = x * HIGH + Bits<float>::ROUND, n = t - Bits<float>::ROUND;
    float r = (__builtin_fmaf(x, HIGH, -n) + x * LOW) * 0.693147181f;
    mantissa = 1 + r * series<float, 1, Exp<float>::DEGREE>(r);
    exponent = n;
}
#endif

// x · 2ⁿ for x of about 1: n between −126 and 126, for double −1021 and 1021.
template <class T> ANYSCORE_INLINE Vector<T> times_power_within(Vector<T> x, Vector<T> n) {
    typedef typename Bits<T>::Unsigned U __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    return (Vector<T>)((U)x + ((U)(n + Bits<T>::ROUND) << Bits<T>::MANTISSA));
}

// The same for any n, which is clamped to where it makes a difference to tanh.
template <class T> ANYSCORE_INLINE Vector<T> times_power_clamped(Vector<T> x, Vector<T> n) {
    n = min(n, fill(TanhLimits<T>::MAX_EXPONENT));
    return times_power_within<T>(x, max(n, fill(TanhLimits<T>::MIN_EXPONENT)));
}

// The same for any n: 2ⁿ is ∞ from 128 on and 0 from −127 down, for double from 1024 and −1023.
template <class T> ANYSCORE_INLINE Vector<T> times_power_saturated(Vector<T> x, Vector<T> n) {
    typedef typename Bits<T>::Unsigned U __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
    constexpr T BIAS = sizeof(T) == 4 ? 127 : 1023;
    n = max(min(n, fill(BIAS + 1)), fill(-BIAS)) + (Bits<T>::ROUND + BIAS);
    return x * (Vector<T>)((U)n << Bits<T>::MANTISSA);
}

// The range of a scorer, see scorer.h: three things of each feature, `padded` numbers each.
template <class T> struct TanhRange {
    const T* centre = nullptr;  // an integer: a + centre and b − centre are worked with
    const T* wide = nullptr;  // 1 where |b − centre| exceeds NARROW, else 0
    const T* small = nullptr;  // 1 where all |b − centre| ≤ SMALL, of the GROUP features around it too; else 0
    bool any_wide = false;

    static constexpr T SMALL = 1;
    static constexpr Size GROUP = 16;  // no vector has more lanes: the same features are small in all of them
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

    // That is all there is to know if no feature reaches beyond NARROW.
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

    // A wide feature is not centred: that would cost digits.
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

    // As one row of `width` numbers: the centre, and ½ more where the feature is wide, ¼ where it is small.
    static void pack(const T* numbers, Size width, Size padded, T* row) {
        for (Size d = 0; d < width; d++) row[d] = numbers[d] + numbers[padded + d] / 2 + numbers[2 * padded + d] / 4;
    }
    static void unpack(const T* row, Size width, Size padded, T* numbers) {
        for (Size d = 0; d < width; d++) {
            T x = row[d], whole = (x - T(0.25) + Bits<T>::ROUND) - Bits<T>::ROUND;
            numbers[d] = whole, numbers[padded + d] = x - whole == T(0.5) ? T(1) : T(0);
            numbers[2 * padded + d] = x - whole == T(0.25) ? T(1) : T(0);
        }
        for (Size d = width; d < padded; d++)  // as small as the group that it fills
            numbers[d] = numbers[padded + d] = 0, numbers[2 * padded + d] = numbers[2 * padded + d - 1];
    }

private:
    // What is small in one feature of a group and not in another is not.
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
