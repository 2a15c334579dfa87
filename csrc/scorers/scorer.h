// What the kernels ask of a scorer: the scores and gradients of a tile, of one pair and one type of sums.
//
// Plain (plain.h) and Tanh (tanh.h) are scorers; Split (split.h) and Bf16Product (bf16_product.h) derive from
// Plain. Scorers have no base class in common and no virtual functions: the two structs below say what a
// scorer must have, are never defined, and check_scorer compares.
#pragma once

#include <type_traits>

#include "runtime/memory.h"
#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// Up to this many queries are a decoder's step: lanes go along features, as transposing keys would cost
// more than it saves.
constexpr Size DECODE_QUERIES = 2;
inline bool decodes(const Call& call) { return call.queries <= DECODE_QUERIES || call.is_graph(); }

// What a scorer has to know of all keys that may be attended before it reads a tile of them, as size(padded)
// numbers of T: the range of each feature. If size is 0 nothing is made, and keys need not be read twice.
template <class T> struct RangeInterface {
    static Size size(Size padded);
    RangeInterface(const T* numbers, Size padded);
    bool any_wide;  // whether panels need a second plane
    // Whether a row of b may be worked with by these numbers, though they were made without it.
    bool takes(const T* row, Size padded) const;

    // Makes the numbers from the largest |b| of each feature. Gives whether that is all there is to know.
    static bool from_largest(const T* largest, Size padded, T* numbers);
    // Makes them from the lowest and the highest b of each feature.
    static void from_ends(const T* low, const T* high, Size padded, T* numbers);

    // To and from one row of `width` numbers, the first of prepared keys.
    static void pack(const T* numbers, Size width, Size padded, T* row);
    static void unpack(const T* row, Size width, Size padded, T* numbers);
};

// Rows hold `width` features of type T, then zeros up to `padded` features, a multiple of the lanes; row
// i + 1 stands `padded` numbers after row i. Query i and key j of a tile have the score s[i · TILE + j].
template <class T, class OfPair, class OfKeys> struct ScorerInterface {
    // The pair by its formula alone, for irregular rows: `value` and `gradient` of scalars, as in pairs.h.
    using Literal = OfPair;
    // A RangeInterface.
    using Range = OfKeys;
    // Multiplies finished sums of da and db.
    static constexpr T FACTOR = 1;
    // The largest |a| and |b| that the scorer takes: rows beyond are irregular.
    static T limit();

    // Takes its buffers from the arena, for the rows of a call.
    ScorerInterface(Arena& arena, const Call& call);

    // Starts a problem. weight: `padded` numbers, with the scale in them, kept by the caller; is_new: not
    // those of the last call; range: of the problem's keys.
    void begin(const T* weight, bool is_new, const Range& range);

    // Takes the queries, or the keys, of a tile: `count` rows, kept by the caller.
    void queries(const T* rows, int count);
    void keys(const T* rows, int count);
    // Takes queries for `gradients` alone.
    void gradient_queries(const T* rows, int count);

    // Many queries: lanes along keys. A panel holds up to LANES keys, those of one feature side by side.
    static Size panel_size(Size width, bool any_wide);
    // Writes `count` of the keys, from the first-th on, as one panel.
    void panel(int first, int count, T* to) const;
    // Writes the scores of `rows` queries with the first `keys` of the `all` keys of a tile, whose panels
    // stand `stride` numbers apart.
    void scores(int rows, const T* panels, Size stride, int keys, int all, T* s) const;

    // A decoder's step, of at most DECODE_QUERIES queries: lanes along features.
    void decode_queries(const T* rows, int count);
    // Brings `count` rows of keys into the form that decode_scores takes; gives where they stand: in `to`,
    // or where they stood. Prepared keys are such rows.
    const T* decode_keys(const T* rows, int count, T* to) const;
    // Writes the scores of `rows` queries with `count` such keys, `stride` numbers apart.
    void decode_scores(int rows, const T* keys, Size stride, int count, T* s) const;

    // Adds to da (rows), db (keys) and dw (one row) what ds[i · TILE + j] makes of them, for the queries and
    // keys last taken; without FACTOR and the weight, which multiply the finished sums.
    void gradients(int rows, int keys, const T* ds, T* da, T* db, T* dw) const;
};

// The type of a member function without its class.
template <class F> struct Signature {
    using type = F;
};
template <class C, class R, class... A> struct Signature<R (C::*)(A...)> {
    using type = R(A...);
};
template <class C, class R, class... A> struct Signature<R (C::*)(A...) const> {
    using type = R(A...) const;
};
template <class F, class G> constexpr bool ALIKE = std::is_same_v<typename Signature<F>::type, typename Signature<G>::type>;

// Does not compile, and names the member, where a class is no scorer.
template <class S, class T> constexpr bool check_scorer() {
    using Range = typename S::Range;
    using Wanted = ScorerInterface<T, typename S::Literal, Range>;
    static_assert(ALIKE<decltype(&S::limit), decltype(&Wanted::limit)>);
    static_assert(std::is_same_v<decltype(S::FACTOR), const T>);
    static_assert(std::is_constructible_v<S, Arena&, const Call&>);
    static_assert(ALIKE<decltype(&S::begin), decltype(&Wanted::begin)>);
    static_assert(ALIKE<decltype(&S::queries), decltype(&Wanted::queries)>);
    static_assert(ALIKE<decltype(&S::keys), decltype(&Wanted::keys)>);
    static_assert(ALIKE<decltype(&S::gradient_queries), decltype(&Wanted::gradient_queries)>);
    static_assert(ALIKE<decltype(&S::panel_size), decltype(&Wanted::panel_size)>);
    static_assert(ALIKE<decltype(&S::panel), decltype(&Wanted::panel)>);
    static_assert(ALIKE<decltype(&S::scores), decltype(&Wanted::scores)>);
    static_assert(ALIKE<decltype(&S::decode_queries), decltype(&Wanted::decode_queries)>);
    static_assert(ALIKE<decltype(&S::decode_keys), decltype(&Wanted::decode_keys)>);
    static_assert(ALIKE<decltype(&S::decode_scores), decltype(&Wanted::decode_scores)>);
    static_assert(ALIKE<decltype(&S::gradients), decltype(&Wanted::gradients)>);

    using WantedRange = RangeInterface<T>;
    static_assert(ALIKE<decltype(&Range::size), decltype(&WantedRange::size)>);
    static_assert(std::is_constructible_v<Range, const T*, Size> && std::is_convertible_v<decltype(Range::any_wide), bool>);
    static_assert(ALIKE<decltype(&Range::takes), decltype(&WantedRange::takes)>);
    static_assert(ALIKE<decltype(&Range::from_largest), decltype(&WantedRange::from_largest)>);
    static_assert(ALIKE<decltype(&Range::from_ends), decltype(&WantedRange::from_ends)>);
    static_assert(ALIKE<decltype(&Range::pack), decltype(&WantedRange::pack)>);
    static_assert(ALIKE<decltype(&Range::unpack), decltype(&WantedRange::unpack)>);
    return true;
}

}  // namespace anyscore::ANYSCORE_ISA
