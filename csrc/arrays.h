// What Python passes, checked: arrays become the plain data of call.h.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "call.h"

namespace anyscore {

using Array = nanobind::ndarray<nanobind::ro, nanobind::device::cpu>;
using Output = nanobind::ndarray<nanobind::device::cpu>;
using MaybeArray = std::optional<Array>;

// Owns the offsets that a call points to.
class Arrays {
public:
    Arrays(std::vector<Size> lead, Size groups);

    // An array of shape (*lead or 1, *tail): sizes of the tail that are −1 are free. of_keys: the last
    // leading dimension is that of the key/value heads.
    template <class A>
    void check(const char* name, const A& array, std::vector<Size> tail, bool of_keys, bool one = false) {
        check_shape(name, shape(array), tail, of_keys, one);
    }
    template <class A> Rows rows(const char* name, const A& array, std::vector<Size> tail, bool of_keys) {
        check(name, array, tail, of_keys);
        std::vector<Size> all = shape(array), strides = steps(array);
        bool has_entries = array.size() > 0;
        if (has_entries && all.back() > 1 && strides.back() != 1) refuse(name, "must have a last axis of unit stride");
        Rows found{array.data(), type(name, array), offsets(all, strides, of_keys), 0};
        if (tail.size() == 2) found.stride = strides[all.size() - 2];
        return found;
    }
    // One number for each of the last axis, at any stride.
    Rows numbers(const char* name, const Array& array, Size count, bool of_keys);
    Bound bound(const char* name, const MaybeArray& array, Size queries);
    Keep keep(const MaybeArray& array, Size queries, Size keys);
    // The data of an array of exactly this shape, C-contiguous.
    template <class A> static auto contiguous(const char* name, const A& array, const std::vector<Size>& expected) {
        check_contiguous(name, shape(array), steps(array), expected);
        return array.data();
    }
    // An output in the shape that an input has.
    Gradient gradient(const char* name, const std::optional<Output>& to, const MaybeArray& input, Type type, bool of_keys);

    // Problems with one b are one key set; or each is its own.
    void key_sets(Call& call);
    void each_its_own(Call& call);
    Groups groups_by(const Size* at);
    Groups tasks(const std::vector<std::vector<Size>>& shapes);

    Size problems = 1;

    template <class A> static std::vector<Size> shape(const A& array) {
        std::vector<Size> sizes(array.ndim());
        for (std::size_t i = 0; i < sizes.size(); i++) sizes[i] = Size(array.shape(i));
        return sizes;
    }
    template <class A> static std::vector<Size> steps(const A& array) {
        std::vector<Size> strides(array.ndim());
        for (std::size_t i = 0; i < strides.size(); i++) strides[i] = Size(array.stride(i));
        return strides;
    }
    template <class A> static Type type(const char* name, const A& array) { return type_of(name, array.dtype()); }
    [[noreturn]] static void refuse(const std::string& name, const std::string& why);
    std::vector<Size> lead;

private:
    static void check_contiguous(const char* name, const std::vector<Size>& shape, const std::vector<Size>& strides,
                                 const std::vector<Size>& expected);
    static Type type_of(const char* name, nanobind::dlpack::dtype dtype);
    void check_shape(const char* name, const std::vector<Size>& shape, const std::vector<Size>& tail, bool of_keys, bool one);
    const Size* offsets(const std::vector<Size>& shape, const std::vector<Size>& strides, bool of_keys);
    Groups group(const std::vector<Size>& number, Size count);

    Size groups;
    std::deque<std::vector<Size>> kept;
    std::deque<std::vector<char>> flags;
};

}  // namespace anyscore
