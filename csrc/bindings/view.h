// Arrays from Python: borrowed for the duration of a call, from any framework.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/memory.h"

namespace anyscore {

// Returns the strides of a C-contiguous array.
std::vector<Size> dense_strides(const std::vector<Size>& shape);

// Returns whether an address is a multiple of the size of the elements.
inline bool is_aligned(const void* data, nanobind::dlpack::dtype dtype) {
    return reinterpret_cast<std::uintptr_t>(data) % std::max<std::size_t>(dtype.bits / 8, 1) == 0;
}

// An array in the memory of the CPU. An argument of None is a View with given = false.
struct View {
    void* data = nullptr;
    nanobind::dlpack::dtype dtype{};
    std::vector<Size> shape, strides;  // in elements
    bool given = false;
    nanobind::ndarray<> owner;  // keeps the memory alive, where nanobind borrowed the array
    std::shared_ptr<Block> aligned;  // the elements, if those of the array are at odd addresses

    // Adds leading dimensions of 1 up to this rank.
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

// DLPack's exchange function in C, if a type has one: writes the tensor that an object lends. Returns 0; or sets a
// Python error and returns another number.
using Exchange = int (*)(void* object, nanobind::dlpack::dltensor* to);
// Returns the exchange function of an object's type; nullptr if it has none.
Exchange exchange_of(PyObject* x);
constexpr int CPU = 1;  // DLPack's number of the device

// A View to write to.
struct Output : View {};

// Fills the view; elements at odd addresses are copied. Returns false if x is no array or is not on the CPU; for an
// array to write to, also if it is read-only or at an odd address.
bool view(PyObject* x, bool writes, View& to);

// Writes the elements of an array one after the other, in the order of a C-contiguous array.
void copy_elements(const View& from, void* to);

// Returns an integer of Python modulo 2^64. Raises std::invalid_argument for another object.
std::uint64_t seed(nanobind::handle x);

}  // namespace anyscore

namespace nanobind::detail {

template <class T> struct view_caster {
    NB_TYPE_CASTER(T, const_name("array"))
    bool from_python(handle x, std::uint8_t, cleanup_list*) {  // a copy may lack memory
        return x.is_none() || anyscore::view(x.ptr(), std::is_same_v<T, anyscore::Output>, value);
    }
};
template <> struct type_caster<anyscore::View> : view_caster<anyscore::View> {};
template <> struct type_caster<anyscore::Output> : view_caster<anyscore::Output> {};

}  // namespace nanobind::detail
