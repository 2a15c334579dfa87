// The interface of a scorer: the scores and gradients of a tile, for one pair and one type of the sums.
//
// Plain (plain.h) and Tanh (tanh.h) are scorers; Split (split.h) and Bf16Product (bf16_product.h) derive from Plain.
// Scorers have no common base class and no virtual functions. The two structs below list the members of a scorer and
// are never defined; check_scorer compares a class with them.
#pragma once

#include <type_traits>

#include "runtime/memory.h"
#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// A call with at most this many queries is a decoder's step: lanes go along features, as transposing keys would cost
// more than it saves.
constexpr Size DECODE_QUERIES = 2;
inline bool decodes(const Call& call) { return call.queries <= DECODE_QUERIES || call.is_graph(); }

// The range of each feature over all keys that may be attended, as size(padded) numbers of T. Each problem has it
// before its first tile of keys. If size is 0, nothing is made, and keys need not be read twice.
template <class T> struct RangeInterface {
    static Size size(Size padded);
    RangeInterface(const T* numbers, Size padded);
    bool any_wide;  // whether a feature is wide (tanh_range.h): then panels need a second plane
    // Returns whether the range holds for a row of b that was not among its keys.
    bool takes(const T* row, Size padded) const;

    // Writes the numbers from the largest |b| of each feature. Returns whether these suffice.
    static bool from_largest(const T* largest, Size padded, T* numbers);
    // Writes the numbers from the lowest and the highest b of each feature.
    static void from_ends(const T* low, const T* high, Size padded, T* numbers);

    // Writes the numbers as the header row of packed keys (width), and reads them back.
    static void pack(const T* numbers, Size width, Size padded, T* row);
    static void unpack(const T* row, Size width, Size padded, T* numbers);
};

// Rows hold `width` features of type T, then zeros up to `padded` features, a multiple of LANES; consecutive rows are
// `padded` numbers apart. Query i and key j of a tile have the score s[i · TILE + j].
template <class T, class OfPair, class OfKeys> struct ScorerInterface {
    // The formula of the pair for irregular rows: `value` and `gradient` of scalars, as in pairs.h.
    using Literal = OfPair;
    // A RangeInterface.
    using Range = OfKeys;
    // A factor of the finished sums of da and db.
    static constexpr T FACTOR = 1;
    // Returns the largest |a| and |b| that the scorer computes: rows beyond are irregular.
    static T limit();

    // Takes buffers for the rows of a call from the arena.
    ScorerInterface(Arena& arena, const Call& call);

    // Starts a problem with the range of its keys. weight: `padded` numbers times the scale, kept by the caller;
    // is_new: whether the weight differs from the last one.
    void begin(const T* weight, bool is_new, const Range& range);

    // Takes the queries, or the keys, of a tile: `count` rows, kept by the caller.
    void queries(const T* rows, int count);
    void keys(const T* rows, int count);
    // Takes queries that only `gradients` will use.
    void gradient_queries(const T* rows, int count);

    // For many queries, lanes go along keys. A panel holds up to LANES keys; one feature of all of them is one
    // vector. Returns its size in numbers.
    static Size panel_size(Size width, bool any_wide);
    // Writes keys [first, first + count) as one panel.
    void panel(int first, int count, T* to) const;
    // Writes the scores of `rows` queries with the first `keys` of a tile's `all` keys. Panels are `stride` numbers
    // apart.
    void scores(int rows, const T* panels, Size stride, int keys, int all, T* s) const;

    // For a decoder's step, of at most DECODE_QUERIES queries, lanes go along features.
    void decode_queries(const T* rows, int count);
    // Converts `count` rows of keys to the form that decode_scores reads. Returns the converted rows: `to`, or `rows`
    // where nothing changes. Packed keys are such rows.
    const T* decode_keys(const T* rows, int count, T* to) const;
    // Writes the scores of `rows` queries with `count` converted keys, `stride` numbers apart.
    void decode_scores(int rows, const T* keys, Size stride, int count, T* s) const;

    // Adds the gradients of the last queries and keys, from ds[i · TILE + j], to da (rows, padded), db (keys, padded)
    // and dw (padded). FACTOR and the weight multiply the finished sums later.
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

// Fails to compile, and names the member, if a class does not match the interface.
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
