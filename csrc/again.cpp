// Calls that come again: a forward that was checked once, or rows appended to a cache, run with other arrays of the
// same types, shapes and strides, with no Python in between and nothing checked but that.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "arrays.h"
#include "calls.h"
#include "isa.h"

namespace nb = nanobind;

namespace anyscore {
namespace {

// An array that came, and what another must be like to take its place.
struct Place {
    PyTypeObject* of;
    Exchange exchange;  // or none: it has a buffer, as NumPy's arrays have
    nb::dlpack::dtype dtype;
    std::string format;  // of the buffer
    std::vector<Size> shape, strides;  // strides: in elements, of a buffer in bytes
    bool writes;

    Place(PyObject* x, const View& view, bool writes = false)
        : of(Py_TYPE(x)), exchange(nullptr), dtype(view.dtype), writes(writes) {
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
            throw nb::python_error();
        }
    }

    // The memory of an array, null if it is of another kind.
    void* memory(PyObject* x) const {
        if (Py_TYPE(x) != of) return nullptr;
        if (exchange) {
            nb::dlpack::dltensor lent;
            if (exchange(x, &lent)) return PyErr_Clear(), nullptr;
            if (lent.device.device_type != CPU || !(lent.dtype == dtype) || !lent.strides) return nullptr;
            return is_alike(lent.ndim, lent.shape, lent.strides) ? (char*)lent.data + lent.byte_offset : nullptr;
        }
        Py_buffer lent;
        const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(x, &lent, flags)) return PyErr_Clear(), nullptr;
        void* data = format == lent.format && is_alike(lent.ndim, lent.shape, lent.strides) ? lent.buf : nullptr;
        PyBuffer_Release(&lent);  // whoever calls holds the array
        return data;
    }

private:
    template <class N> bool is_alike(int rank, const N* its_shape, const N* its_strides) const {
        return std::size_t(rank) == shape.size() && std::equal(shape.begin(), shape.end(), its_shape) &&
               std::equal(strides.begin(), strides.end(), its_strides);
    }
};

// What an array lends. Raises std::invalid_argument: nothing.
View lent(nb::handle x, bool writes = false) {
    View array;
    if (!view(x.ptr(), writes, array)) throw std::invalid_argument("its arrays are not lent.");
    return array;
}

// The operands that a call may have.
constexpr std::string_view KINDS[] = {"a", "b", "weight", "value", "packed", "stop"};

class Again {
public:
    // A call that `forward` could take, with no mask but the ends of intervals, without biases and dropout; lead: of its
    // output, which is of the type of a, and is made by empty(a, shape). lengths: the array that stop is a view of, or None;
    // other calls bring theirs. Raises std::invalid_argument where no other call can take its place.
    Again(nb::tuple operands, nb::handle lengths, const std::string& pair,
          const std::array<double, Settings::COUNT>& numbers, const std::vector<Size>& lead, nb::object empty)
        : pair(pair), empty(empty), settings(numbers.data()), arrays(lead, settings.groups) {
        Operands in;
        for (std::size_t i = 0; i < std::size(OPERANDS); i++) {
            nb::handle x = operands[i];
            if (x.is_none()) continue;
            auto* kind = std::find(std::begin(KINDS), std::end(KINDS), OPERANDS[i].name);
            if (kind == std::end(KINDS)) throw std::invalid_argument("the call has operands that are made for it.");
            View& array = in.*OPERANDS[i].view;
            nb::handle comes = *kind == "stop" && !lengths.is_none() ? lengths : x;
            View as_it_comes = lent(comes);
            array = lent(x);
            if (array.data != as_it_comes.data) throw std::invalid_argument("its arrays have to be copied.");
            places[std::size_t(kind - KINDS)].emplace(comes.ptr(), as_it_comes);
            if (*kind != "stop" && Arrays::type(OPERANDS[i].name, array) == Type::F64) sums = Type::F64;
        }
        if (!in.a || !in.b || !in.value || in.a.rank() < 2) throw std::invalid_argument("the call has no output.");
        call = describe(arrays, in, settings, in.a.shape[in.a.shape.size() - 2]);
        output_type = call.a.type;
        if (in.packed) take_packed(call, arrays, in.packed, sums);
        if (arrays.has_copies()) throw std::invalid_argument("its arrays have to be copied.");
        std::vector<Size> sizes = lead;
        sizes.push_back(call.queries), sizes.push_back(call.value_width);
        shape = nb::steal<nb::tuple>(PyTuple_New(Py_ssize_t(sizes.size())));
        for (std::size_t i = 0; i < sizes.size(); i++)
            PyTuple_SET_ITEM(shape.ptr(), Py_ssize_t(i), PyLong_FromLongLong(sizes[i]));
    }

    Again(const Again&) = delete;

    // The output for arrays a, b, weight, value, packed and lengths, or None where these are others.
    nb::object run(nb::handle a, nb::handle b, nb::handle weight, nb::handle value, nb::handle packed, nb::handle lengths,
                   int threads) const {
        Call now = call;
        now.dots = call.dots && dots();
        const nb::handle operands[] = {a, b, weight, value, packed, lengths};
        const void* bounds = nullptr;
        const void** const data_of[] = {&now.a.data,     &now.b.data,      &now.weight.data,
                                        &now.value.data, &now.packed.data, &bounds};
        for (std::size_t i = 0; i < std::size(operands); i++) {
            if (operands[i].is_none() == places[i].has_value()) return nb::none();
            if (!places[i]) continue;
            *data_of[i] = places[i]->memory(operands[i].ptr());
            if (!*data_of[i]) return nb::none();
        }
        now.stop.data = static_cast<const std::int64_t*>(bounds);
        nb::object output = nb::steal(PyObject_CallFunctionObjArgs(empty.ptr(), a.ptr(), shape.ptr(), nullptr));
        if (!output.is_valid()) throw nb::python_error();
        View to;
        if (!view(output.ptr(), true, to) || Arrays::type("output", to) != output_type) return nb::none();
        nb::gil_scoped_release release;
        Block lse = allocate(Size(sizeof(double)), call.problems * call.queries);
        Forward made;
        made.output = to.data, made.output_type = output_type, made.lse = lse.data;
        find(pair, sums).forward(now, made, threads);
        return output;
    }

private:
    std::string pair;
    nb::object empty;
    Settings settings;
    std::array<std::optional<Place>, std::size(KINDS)> places;
    Arrays arrays;  // what the call points to
    Call call;
    Type sums = Type::F32, output_type;
    nb::tuple shape;
};

// New rows of a cache: keys, whose part of the scores' factors they are themselves, and values.
class AppendAgain {
public:
    // Rows key and value (*lead, n, width) that came to the arrays b and values (*lead, capacity, width) of a cache, with
    // packed keys or None, and its length () of int64. Raises std::invalid_argument where no others can take their place.
    AppendAgain(const std::string& pair, nb::handle key, nb::handle value, nb::handle b, nb::handle values,
                nb::handle packed, nb::handle length)
        : pair(pair), keys(key, b), of_values(value, values), length(length.ptr(), lent(length, true), true) {
        constexpr auto INTEGER = std::uint8_t(nb::dlpack::dtype_code::Int);
        if (this->length.dtype.code != INTEGER || this->length.dtype.bits != 64 || !this->length.shape.empty())
            throw std::invalid_argument("the length is no integer.");
        if (packed.is_none()) return;
        static_cast<View&>(to_pack) = lent(packed, true);
        of_packed.emplace(packed.ptr(), to_pack, true);
    }

    // Whether the rows were appended. They were not, and nothing was written, where the arrays are others, and where there
    // is no room.
    bool run(nb::handle key, nb::handle value, nb::handle b, nb::handle values, nb::handle packed, nb::handle length,
             int threads) const {
        auto* count = static_cast<std::int64_t*>(this->length.memory(length.ptr()));
        if (!count || packed.is_none() == of_packed.has_value()) return false;
        const std::int64_t start = *count;
        if (start < 0 || start + keys.count > keys.capacity) return false;
        Output all = to_pack;
        if (of_packed && !(all.data = of_packed->memory(packed.ptr()))) return false;
        Copy of_key, of_value;
        if (!keys.find(key, b, of_key) || !of_values.find(value, values, of_value)) return false;
        nb::gil_scoped_release release;
        keys.copy(of_key, start), of_values.copy(of_value, start);
        if (of_packed) {
            View rows = keys.to;
            rows.data = of_key.to;
            append_keys(pair, rows, all, {start, keys.count}, threads);
        }
        *count = start + keys.count;
        return true;
    }

private:
    struct Copy {
        const char* from;
        char* to;
    };

    // Rows that come, and those that they become.
    struct RowsOf {
        View from, to;
        Place comes, stays;
        Size count, capacity, bytes;

        RowsOf(nb::handle x, nb::handle room)
            : from(lent(x)), to(lent(room, true)), comes(x.ptr(), from), stays(room.ptr(), to, true) {
            const std::size_t rank = from.shape.size();
            std::vector<Size> shape = to.shape;
            if (rank < 2 || shape.size() != rank || !(from.dtype == to.dtype))
                throw std::invalid_argument("the rows are not like those that are there.");
            capacity = shape[rank - 2];
            count = shape[rank - 2] = from.shape[rank - 2];
            if (from.shape != shape || from.strides[rank - 1] != 1 || to.strides[rank - 1] != 1)
                throw std::invalid_argument("the rows are not like those that are there.");
            bytes = from.dtype.bits / 8;
        }

        bool find(nb::handle x, nb::handle room, Copy& found) const {
            found = {static_cast<const char*>(comes.memory(x.ptr())), static_cast<char*>(stays.memory(room.ptr()))};
            return found.from && found.to;
        }

        void copy(const Copy& rows, Size start) const {
            const std::size_t axis = from.shape.size() - 2;
            along(0, axis, rows.from, rows.to + start * to.strides[axis] * bytes);
        }

        void along(std::size_t axis, std::size_t last, const char* x, char* y) const {
            if (axis > last) {  // which may be a row of the cache itself
                std::memmove(y, x, std::size_t(from.shape[axis] * bytes));
                return;
            }
            for (Size n = 0; n < from.shape[axis]; n++)
                along(axis + 1, last, x + n * from.strides[axis] * bytes, y + n * to.strides[axis] * bytes);
        }
    };

    std::string pair;
    RowsOf keys, of_values;
    Place length;
    std::optional<Place> of_packed;
    Output to_pack;
};

}  // namespace

void bind_again(nb::module_& module) {
    nb::class_<Again>(module, "Again")
        .def(nb::init<nb::tuple, nb::handle, const std::string&, const std::array<double, Settings::COUNT>&,
                      const std::vector<Size>&, nb::object>(),
             nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
        .def("__call__", &Again::run, nb::arg("a"), nb::arg("b"), nb::arg("weight").none(), nb::arg("value"),
             nb::arg("packed").none(), nb::arg("lengths").none(), nb::arg("threads"));
    nb::class_<AppendAgain>(module, "AppendAgain")
        .def(nb::init<const std::string&, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
        .def("__call__", &AppendAgain::run, nb::arg("key"), nb::arg("value"), nb::arg("b"), nb::arg("values"),
             nb::arg("packed").none(), nb::arg("length"), nb::arg("threads"));
}

}  // namespace anyscore
