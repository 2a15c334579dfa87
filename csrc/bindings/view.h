// Arrays as Python passes them: borrowed for the time of a call, from any framework.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <vector>

#include "runtime/call.h"

namespace anyscore {

// Of an array without gaps, in row-major order.
std::vector<Size> dense_strides(const std::vector<Size>& shape);

// Memory on the CPU. An argument that may be None is a View that is not given.
struct View {
    void* data = nullptr;
    nanobind::dlpack::dtype dtype{};
    std::vector<Size> shape, strides;  // in elements
    bool given = false;
    nanobind::ndarray<> owner;  // where the array had to be asked for it

    // Leading dimensions of 1 make the rank at least this.
    void fill_up(std::size_t rank) {
        std::size_t missing = rank - std::min(rank, shape.size());
        shape.insert(shape.begin(), missing, 1), strides.insert(strides.begin(), missing, 0);
    }
    explicit operator bool() const { return given; }
    Size rank() const { return Size(shape.size()); }
    Size size() const {
        Size n = 1;
        for (Size sizes : shape) n *= sizes;
        return n;
    }
};

// DLPack's exchange in C, where the type of an object has it: writes what the object lends, or sets an error and
// gives another number than 0.
using Exchange = int (*)(void* object, nanobind::dlpack::dltensor* to);
Exchange exchange_of(PyObject* x);
constexpr int CPU = 1;  // the device

// A View that is written to.
struct Output : View {};

// Fills the view; false where x is no array, or not on the CPU, or must not be written to.
bool view(PyObject* x, bool writes, View& to);

}  // namespace anyscore

namespace nanobind::detail {

template <class T> struct view_caster {
    NB_TYPE_CASTER(T, const_name("array"))
    bool from_python(handle x, std::uint8_t, cleanup_list*) noexcept {
        return x.is_none() || anyscore::view(x.ptr(), std::is_same_v<T, anyscore::Output>, value);
    }
};
template <> struct type_caster<anyscore::View> : view_caster<anyscore::View> {};
template <> struct type_caster<anyscore::Output> : view_caster<anyscore::Output> {};

}  // namespace nanobind::detail
