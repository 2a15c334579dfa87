// Repeated appends to a cache: rows of the same types, shapes and strides as earlier ones. Nothing else is checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>

#include "bindings/calls.h"
#include "bindings/layout.h"
#include "bindings/released.h"

namespace nb = nanobind;

namespace anyscore {
namespace {

// An append that was checked, to be run on other rows: keys, which are their own factor b of scores, and values.
class RepeatedAppend {
public:
    // Keeps the layouts of an append. New rows are key and value (*lead, n, width); the cache has b and values
    // (*lead, capacity, width), packed keys or None, and its length, () of int64. Raises std::invalid_argument if no
    // other rows can be appended so.
    RepeatedAppend(const std::string& pair, nb::handle key, nb::handle value, nb::handle b, nb::handle values,
                   nb::handle packed, nb::handle length)
        : pair(pair), keys(key, b), of_values(value, values), length(length.ptr(), lent(length, true), true) {
        if (keys.count != of_values.count || keys.capacity != of_values.capacity)
            throw std::invalid_argument("the rows are not like those that are there.");
        constexpr auto INTEGER = std::uint8_t(nb::dlpack::dtype_code::Int);
        if (this->length.dtype.code != INTEGER || this->length.dtype.bits != 64 || !this->length.shape.empty())
            throw std::invalid_argument("the length is no integer.");
        if (packed.is_none()) return;
        static_cast<View&>(to_pack) = lent(packed, true);
        of_packed.emplace(packed.ptr(), to_pack, true);
        to_pack.owner = {};  // later calls bring their own arrays
    }

    // Appends rows. Returns false, and writes nothing, if an array's layout differs, or the cache is full.
    bool run(nb::handle key, nb::handle value, nb::handle b, nb::handle values, nb::handle packed, nb::handle length,
             int threads) const {
        auto* count = static_cast<std::int64_t*>(this->length.memory(length.ptr()));
        if (!count || packed.is_none() == of_packed.has_value()) return false;
        const std::int64_t start = *count;
        if (start < 0 || start > keys.capacity - keys.count) return false;
        Output all = to_pack;
        if (of_packed && !(all.data = of_packed->memory(packed.ptr()))) return false;
        Copy of_key, of_value;
        if (!keys.find(key, b, of_key) || !of_values.find(value, values, of_value)) return false;
        Released released;
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

    // New rows `from`, and the array `to` of the cache that they are copied to.
    struct RowsOf {
        View from, to;
        ArrayLayout comes, stays;
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
            from.owner = {}, to.owner = {};  // later calls bring their own arrays
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
            if (axis > last) {  // memmove: a new row may be a row of the cache itself
                std::memmove(y, x, std::size_t(from.shape[axis] * bytes));
                return;
            }
            for (Size n = 0; n < from.shape[axis]; n++)
                along(axis + 1, last, x + n * from.strides[axis] * bytes, y + n * to.strides[axis] * bytes);
        }
    };

    std::string pair;
    RowsOf keys, of_values;
    ArrayLayout length;
    std::optional<ArrayLayout> of_packed;
    Output to_pack;
};

}  // namespace

void bind_append(nb::module_& module) {
    nb::class_<RepeatedAppend>(module, "RepeatedAppend")
        .def(nb::init<const std::string&, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
        .def("__call__", &RepeatedAppend::run, nb::arg("key"), nb::arg("value"), nb::arg("b"), nb::arg("values"),
             nb::arg("packed").none(), nb::arg("length"), nb::arg("threads"));
}

}  // namespace anyscore
