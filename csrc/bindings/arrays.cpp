#include "bindings/arrays.h"

#include <numeric>
#include <stdexcept>

namespace anyscore {

namespace {

constexpr Size LONGEST = Size(1) << 32;  // the largest size of one axis

std::string text(const std::vector<Size>& sizes) {
    std::string all = "(";
    for (Size n : sizes) all += (all.size() > 1 ? ", " : "") + (n < 0 ? std::string("any") : std::to_string(n));
    return all + ")";
}

}  // namespace

void Arrays::refuse(const std::string& name, const std::string& why) { throw std::invalid_argument(name + " " + why + "."); }

Arrays::Arrays(std::vector<Size> sizes, Size groups) : lead(std::move(sizes)), groups(groups) {
    if (groups < 1 || (groups > 1 && (lead.empty() || lead.back() % groups)))
        refuse("groups", "= " + std::to_string(groups) + " must divide the heads of lead " + text(lead));
    for (Size n : lead)
        if (n < 0 || __builtin_mul_overflow(problems, n, &problems) || problems > LONGEST)
            refuse("lead " + text(lead), "is too large");
}

Type Arrays::type(const char* name, const View& array) {
    using Code = nanobind::dlpack::dtype_code;
    auto is = [&](Code code, int bits) {
        return array.dtype == nanobind::dlpack::dtype{std::uint8_t(code), std::uint8_t(bits), 1};
    };
    if (is(Code::Float, 32)) return Type::F32;
    if (is(Code::Float, 64)) return Type::F64;
    if (is(Code::Float, 16)) return Type::F16;
    if (is(Code::Bfloat, 16) || is(Code::Int, 16)) return Type::BF16;
    refuse(name, "must be float32, float64, float16, bfloat16, or int16 for the bits of bfloat16");
}

void Arrays::check(const char* name, View& array, const std::vector<Size>& tail, bool of_keys, bool tail_broadcasts) {
    std::vector<Size> full = lead;
    if (of_keys && groups > 1) full.back() /= groups;
    std::size_t rank = full.size();
    full.insert(full.end(), tail.begin(), tail.end());
    std::vector<Size> got = array.shape;
    if (array.shape.size() >= tail.size()) array.fill_up(full.size());
    bool fits = array.shape.size() == full.size();
    for (std::size_t i = 0; fits && i < full.size(); i++) {
        bool broadcast = (i < rank || tail_broadcasts) && array.shape[i] == 1;
        fits = full[i] < 0 || array.shape[i] == full[i] || broadcast;
    }
    if (!fits) refuse(name, "has shape " + text(got) + ", expected " + text(full) + " or 1 where it broadcasts");
    for (Size n : got)
        if (n >= LONGEST) refuse(name, "has shape " + text(got) + ", which is too large");
}

// Replaces an int32 array by an int64 copy.
void Arrays::widen(View& array) {
    copy(array);
    kept.push_back({});
    const auto* from = static_cast<const std::int32_t*>(array.data);
    kept.back().assign(from, from + array.size());
    array.data = kept.back().data(), array.dtype = nanobind::dtype<std::int64_t>();
}

// Replaces an array by a C-contiguous copy.
void Arrays::copy(View& array) {
    Block block = allocate(array.dtype.bits / 8, array.size());
    copy_elements(array, block.data);
    array.strides = dense_strides(array.shape);
    array.data = block.data;
    copies.push_back(std::move(block));
}

const Size* Arrays::offsets(const View& array, bool of_keys) {
    std::vector<Size> at(std::size_t(problems), 0);
    Size inner = problems;
    for (std::size_t r = 0; r < lead.size() && problems; r++) {
        inner /= lead[r];
        if (array.shape[r] == 1) continue;
        Size shared = of_keys && r + 1 == lead.size() ? groups : 1;
        for (Size n = 0; n < problems; n++) at[std::size_t(n)] += n / inner % lead[r] / shared * array.strides[r];
    }
    kept.push_back(std::move(at));
    return kept.back().data();
}

Rows Arrays::rows(const char* name, View& array, const std::vector<Size>& tail, bool of_keys) {
    check(name, array, tail, of_keys);
    Type type = Arrays::type(name, array);
    if (array.size() > 0 && array.shape.back() > 1 && array.strides.back() != 1) copy(array);
    Rows found{array.data, type, offsets(array, of_keys), 0};
    if (tail.size() == 2) found.stride = array.strides[array.strides.size() - 2];
    return found;
}

Rows Arrays::numbers(const char* name, View& array, Size count, bool of_keys) {
    check(name, array, {count}, of_keys);
    return {array.data, type(name, array), offsets(array, of_keys), array.strides.back()};
}

Bias Arrays::bias(View& array, Size queries, Size keys, bool diagonal, bool after) {
    Bias found;
    found.diagonal = diagonal, found.after = after;
    if (diagonal)
        check("bias", array, {1, queries + keys > 1 ? queries + keys - 1 : 1}, false);
    else
        check("bias", array, {queries, keys}, false);
    std::size_t column = array.shape.size() - 1;
    found.column = array.strides[column];
    Size row = diagonal ? -found.column : array.strides[column - 1];
    found.first = diagonal ? (queries - 1) * found.column : 0;
    found.entries = {array.data, type("bias", array), offsets(array, false), row};
    return found;
}

Bound Arrays::bound(const char* name, View& array, Size queries) {
    if (!array) return {};
    if (array.dtype == nanobind::dtype<std::int32_t>()) widen(array);
    if (array.dtype != nanobind::dtype<std::int64_t>()) refuse(name, "must be int64 or int32");
    check(name, array, {queries}, false, true);
    return {static_cast<const std::int64_t*>(array.data), offsets(array, false),
            array.shape.back() == 1 ? 0 : array.strides.back()};
}

Mask Arrays::mask(View& array, Size queries, Size keys) {
    if (!array) return {};
    if (array.dtype != nanobind::dtype<bool>()) refuse("mask", "must be bool");
    check("mask", array, {queries, keys}, false, true);
    std::size_t row = array.shape.size() - 2, column = row + 1;
    return {static_cast<const bool*>(array.data), offsets(array, false), array.shape[row] == 1 ? 0 : array.strides[row],
            array.shape[column] == 1 ? 0 : array.strides[column]};
}

Bias Arrays::bias_of_edges(View& array, Size edges, bool after) {
    Bias found;
    check("bias", array, {1, edges}, false);
    found.after = after, found.column = array.strides.back();
    found.entries = {array.data, type("bias", array), offsets(array, false), 0};
    return found;
}

Bound Arrays::bound_for_all(const std::int64_t* numbers) {
    kept.push_back(std::vector<Size>(std::size_t(problems), 0));
    return {numbers, kept.back().data(), 1};
}

const std::int64_t* Arrays::integers(const char* name, View& array, Size count, Size least, Size most, bool sorted) {
    if (array.dtype == nanobind::dtype<std::int32_t>()) widen(array);
    if (array.dtype != nanobind::dtype<std::int64_t>()) refuse(name, "must be int64 or int32");
    while (array.rank() > 1 && array.shape[0] == 1)
        array.shape.erase(array.shape.begin()), array.strides.erase(array.strides.begin());
    const auto* x = static_cast<const std::int64_t*>(contiguous(name, array, {count}));
    Size before = least;
    for (Size i = 0; i < count; i++) {
        if (x[i] < before || x[i] > most)
            refuse(name, "holds " + std::to_string(x[i]) + " at " + std::to_string(i) + ", expected " +
                             std::to_string(before) + " to " + std::to_string(most));
        if (sorted) before = x[i];
    }
    return x;
}

void* Arrays::contiguous(const char* name, const View& array, const std::vector<Size>& expected) {
    if (array.shape != expected) refuse(name, "has shape " + text(array.shape) + ", expected " + text(expected));
    std::vector<Size> strides = dense_strides(expected);
    for (std::size_t i = 0; array.size() && i < expected.size(); i++)
        if (expected[i] > 1 && array.strides[i] != strides[i]) refuse(name, "must be C-contiguous");
    return array.data;
}

Gradient Arrays::gradient(const char* name, Output& to, const View& input, Type sums, bool of_keys) {
    if (!to || !input) return {};
    to.fill_up(input.shape.size());
    void* data = contiguous(name, to, input.shape);
    if (type(name, to) != sums) refuse(name, "must have the type of stats");
    Size count;
    std::vector<Size> number = numbered({&to}, of_keys, count);
    std::vector<char> is_first(number.size(), 0), seen(std::size_t(count), 0);
    for (std::size_t n = 0; n < number.size(); n++)
        if (char& was = seen[std::size_t(number[n])]; !was) is_first[n] = was = 1;
    flags.push_back(std::move(is_first));
    return {data, offsets(to, of_keys), reinterpret_cast<const bool*>(flags.back().data())};
}

// Returns, for each problem, the number of its part of the arrays, and sets `count` to the number of parts. Parts are
// numbered in the order of problems. A leading dimension separates problems only if all of the arrays have it.
std::vector<Size> Arrays::numbered(const std::vector<const View*>& arrays, bool of_keys, Size& count) const {
    std::vector<Size> number(std::size_t(problems), 0);
    Size inner = problems;
    count = problems ? 1 : 0;
    for (std::size_t r = 0; r < lead.size() && problems; r++) {
        inner /= lead[r];
        bool shared = false;
        for (const View* array : arrays) shared |= array->shape[r] == 1 || array->strides[r] == 0;
        if (shared) continue;
        Size part = of_keys && r + 1 == lead.size() ? groups : 1, sizes = lead[r] / part;
        for (Size n = 0; n < problems; n++)
            number[std::size_t(n)] = number[std::size_t(n)] * sizes + n / inner % lead[r] / part;
        count *= sizes;
    }
    return number;
}

void Arrays::key_sets(Call& call, const View& b) {
    std::vector<Size> number = numbered({&b}, true, call.key_sets), first(std::size_t(call.key_sets));
    for (std::size_t n = number.size(); n-- > 0;) first[std::size_t(number[n])] = Size(n);
    kept.push_back(std::move(number));
    call.key_set = kept.back().data();
    kept.push_back(std::move(first));
    call.first_problem = kept.back().data();
}

void Arrays::key_set_per_problem(Call& call) {
    std::vector<Size> all(std::size_t(problems), 0);
    std::iota(all.begin(), all.end(), Size(0));
    kept.push_back(std::move(all));
    call.key_sets = problems;
    call.key_set = call.first_problem = kept.back().data();
}

Groups Arrays::groups_by(const std::vector<const View*>& arrays, bool of_keys) {
    Size count;
    std::vector<Size> number = numbered(arrays, of_keys, count);
    std::vector<Size> first(std::size_t(count) + 1, 0), members(number.size());
    for (Size g : number) first[std::size_t(g) + 1]++;
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<Size> next(first);
    for (std::size_t n = 0; n < number.size(); n++) members[std::size_t(next[std::size_t(number[n])]++)] = Size(n);
    Groups found{count, nullptr, nullptr};
    kept.push_back(std::move(first));
    found.first = kept.back().data();
    kept.push_back(std::move(members));
    found.members = kept.back().data();
    return found;
}

}  // namespace anyscore
