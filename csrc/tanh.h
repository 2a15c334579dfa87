// tanh(a + b): the class that the kernels take, like Plain, made of its two layouts.
#pragma once

#include "tanh_rows.h"
#include "tanh_scores.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> class Tanh : public TanhScores<T>, public TanhRows<T> {
public:
    using Literal = TanhOfSum;
    using Range = TanhRange<T>;
    static T limit() { return TanhLimits<T>::HUGE_INPUT; }
    static constexpr T FACTOR = T(4);

    Tanh(Arena& arena, Size width) : TanhScores<T>(arena, width), TanhRows<T>(arena, width) {}

    void begin(const T* weight, const Range& range) {
        TanhScores<T>::begin(weight, range);
        TanhRows<T>::begin(weight, range);
    }
};

}  // namespace anyscore::ANYSCORE_ISA
