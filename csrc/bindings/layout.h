// The layouts of arrays: type, shape and strides, which arrays of a repeated call must have.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/view.h"

namespace anyscore {

// The layout of one array, and its class in Python. Another array must have the same.
struct ArrayLayout {
    PyTypeObject* type;
    Exchange exchange;  // DLPack's exchange; null for an array with a buffer, such as NumPy's
    nanobind::dlpack::dtype dtype;
    std::string format;  // of a buffer
    std::vector<Size> shape, strides;  // strides: in elements; in bytes for a buffer
    bool writes;

    ArrayLayout(PyObject* x, const View& view, bool writes = false)
        : type(Py_TYPE(x)), exchange(nullptr), dtype(view.dtype), writes(writes) {
        shape = view.shape, strides = view.strides;
        Py_buffer buffer;
        if (!PyObject_CheckBuffer(x)) {
            exchange = exchange_of(x);
            if (!exchange) throw std::invalid_argument("its arrays are not lent.");
        } else if (PyObject_GetBuffer(x, &buffer, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
            strides.assign(buffer.strides, buffer.strides + buffer.ndim);
            format = buffer.format;
            PyBuffer_Release(&buffer);
        } else {
            throw nanobind::python_error();
        }
    }

    // Returns the memory of an array of this layout; nullptr for any other, and for one at an odd address.
    void* memory(PyObject* x) const {
        void* data = lent_memory(x);
        return is_aligned(data, dtype) ? data : nullptr;
    }

private:
    void* lent_memory(PyObject* x) const {
        if (Py_TYPE(x) != type) return nullptr;
        if (exchange) {
            nanobind::dlpack::dltensor lent;
            if (exchange(x, &lent)) return PyErr_Clear(), nullptr;
            if (lent.device.device_type != CPU || !(lent.dtype == dtype) || !lent.strides) return nullptr;
            return is_alike(lent.ndim, lent.shape, lent.strides) ? (char*)lent.data + lent.byte_offset : nullptr;
        }
        Py_buffer lent;
        const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(x, &lent, flags)) return PyErr_Clear(), nullptr;
        void* data = format == lent.format && is_alike(lent.ndim, lent.shape, lent.strides) ? lent.buf : nullptr;
        PyBuffer_Release(&lent);  // the caller holds the array
        return data;
    }

    template <class N> bool is_alike(int rank, const N* other_shape, const N* other_strides) const {
        return std::size_t(rank) == shape.size() && std::equal(shape.begin(), shape.end(), other_shape) &&
               std::equal(strides.begin(), strides.end(), other_strides);
    }
};

// Returns a view of an array. Raises std::invalid_argument if the array does not lend its memory.
inline View lent(nanobind::handle x, bool writes = false) {
    View array;
    if (!view(x.ptr(), writes, array)) throw std::invalid_argument("its arrays are not lent.");
    return array;
}

}  // namespace anyscore
