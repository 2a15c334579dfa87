// Arrays from Python or XLA, checked and turned into the plain data of call.h.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "bindings/view.h"
#include "runtime/memory.h"

namespace anyscore {

// Owns the offsets of a call, and copies of arrays whose rows do not have unit stride. Arrays may lack leading
// dimensions of 1.
class Arrays {
public:
    Arrays(std::vector<Size> lead, Size groups);

    // Returns an array of shape (*lead or 1, *tail) as rows. A size of −1 in the tail allows any. of_keys: whether
    // the last leading dimension counts key/value heads.
    Rows rows(const char* name, View& array, const std::vector<Size>& tail, bool of_keys);
    // Returns an array (*lead or 1, count) of numbers at any stride.
    Rows numbers(const char* name, View& array, Size count, bool of_keys);
    // Returns a bias of (queries, keys) entries at any strides, or of diagonals, (1, queries + keys − 1). Entry j − i
    // + queries − 1 of diagonals is added to the score of query i and key j.
    Bias bias(View& array, Size queries, Size keys, bool diagonal, bool after);
    Bound bound(const char* name, View& array, Size queries);
    Mask mask(View& array, Size queries, Size keys);
    // Returns a bias of one number for each edge, (1, edges).
    Bias bias_of_edges(View& array, Size edges, bool after);
    // Returns a bound that is the same for all problems.
    Bound bound_for_all(const std::int64_t* numbers);
    // Returns `count` contiguous integers after checking that each is in [least, most], and that they are sorted if
    // `sorted`.
    const std::int64_t* integers(const char* name, View& array, Size count, Size least, Size most, bool sorted = false);
    // Returns where the gradient of an input goes, an output of the input's shape; or none.
    Gradient gradient(const char* name, Output& to, const View& input, Type type, bool of_keys);

    // Numbers the key sets of a call: problems with the same b share one; or each problem has its own.
    void key_sets(Call& call, const View& b);
    void key_set_per_problem(Call& call);
    // Returns the problems, grouped by their part of an array, or of any of several arrays.
    Groups groups_by(const std::vector<const View*>& arrays, bool of_keys);

    // Returns the data of a C-contiguous array of exactly this shape.
    static void* contiguous(const char* name, const View& array, const std::vector<Size>& expected);
    static Type type(const char* name, const View& array);
    [[noreturn]] static void refuse(const std::string& name, const std::string& why);

    // Returns whether an array was copied: then the call cannot be repeated on other arrays.
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
