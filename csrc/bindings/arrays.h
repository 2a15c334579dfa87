// What Python passes, checked: arrays become the plain data of call.h.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "bindings/view.h"
#include "runtime/memory.h"

namespace anyscore {

// Owns what a call points to: offsets, and copies of arrays whose rows are not of unit stride. Arrays
// may lack leading dimensions of 1.
class Arrays {
public:
    Arrays(std::vector<Size> lead, Size groups);

    // An array of shape (*lead or 1, *tail), as rows: sizes of the tail that are −1 are free. of_keys:
    // the last leading dimension is that of the key/value heads.
    Rows rows(const char* name, View& array, const std::vector<Size>& tail, bool of_keys);
    // One number for each of the last axis, at any stride.
    Rows numbers(const char* name, View& array, Size count, bool of_keys);
    // (queries, keys) entries at any strides; or of diagonals (1, queries + keys − 1), entry j − i + queries − 1.
    Bias bias(View& array, Size queries, Size keys, bool diagonal, bool after);
    Bound bound(const char* name, View& array, Size queries);
    Mask mask(View& array, Size queries, Size keys);
    // One number for each edge, of all queries.
    Bias bias_of_edges(View& array, Size edges, bool after);
    // The same for all problems.
    Bound bound_for_all(const std::int64_t* numbers);
    // `count` integers, one after the other, from `least` to `most`; sorted, if they are to be.
    const std::int64_t* integers(const char* name, View& array, Size count, Size least, Size most, bool sorted = false);
    // An output in the shape that an input has, or none.
    Gradient gradient(const char* name, Output& to, const View& input, Type type, bool of_keys);

    // Problems with one b are one key set; or each is its own.
    void key_sets(Call& call, const View& b);
    void key_set_per_problem(Call& call);
    // The problems grouped by the part of an array, or of any of several, that they have.
    Groups groups_by(const std::vector<const View*>& arrays, bool of_keys);

    // The data of an array of exactly this shape, C-contiguous.
    static void* contiguous(const char* name, const View& array, const std::vector<Size>& expected);
    static Type type(const char* name, const View& array);
    [[noreturn]] static void refuse(const std::string& name, const std::string& why);

    // Whether an array had to be copied: what was made of it holds for no other.
    bool has_copies() const { return !copies.empty(); }

    Size problems = 1;
    std::vector<Size> lead;

private:
    void check(const char* name, View& array, const std::vector<Size>& tail, bool of_keys, bool tail_broadcasts = false);
    void copy(View& array);
    void widen(View& array);
    const Size* offsets(const View& array, bool of_keys);
    std::vector<Size> numbered(const std::vector<const View*>& arrays, bool of_keys, Size& count) const;

    Size groups;
    std::deque<std::vector<Size>> kept;
    std::deque<std::vector<char>> flags;
    std::deque<Block> copies;
};

}  // namespace anyscore
