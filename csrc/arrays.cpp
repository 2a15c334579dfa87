#include "arrays.h"

#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

namespace anyscore {

namespace {

constexpr Size LONGEST = Size(1) << 32;  // of one axis

std::string text(const std::vector<Size>& sizes) {
    std::string all = "(";
    for (Size n : sizes) all += (all.size() > 1 ? ", " : "") + (n < 0 ? std::string("any") : std::to_string(n));
    return all + ")";
}

}  // namespace

void Arrays::refuse(const std::string& name, const std::string& why) {
    throw std::invalid_argument(name + " " + why + ".");
}

Arrays::Arrays(std::vector<Size> sizes, Size groups) : lead(std::move(sizes)), groups(groups) {
    if (groups < 1 || (groups > 1 && (lead.empty() || lead.back() % groups)))
        refuse("groups", "= " + std::to_string(groups) + " must divide the heads of lead " + text(lead));
    for (Size n : lead)
        if (n < 0 || __builtin_mul_overflow(problems, n, &problems) || problems > LONGEST)
            refuse("lead " + text(lead), "is too large");
}

Type Arrays::type_of(const char* name, nanobind::dlpack::dtype dtype) {
    using Code = nanobind::dlpack::dtype_code;
    if (dtype.lanes == 1 && dtype.code == std::uint8_t(Code::Float)) {
        if (dtype.bits == 32) return Type::F32;
        if (dtype.bits == 64) return Type::F64;
        if (dtype.bits == 16) return Type::F16;
    }
    if (dtype.lanes == 1 && dtype.code == std::uint8_t(Code::Int) && dtype.bits == 16) return Type::BF16;
    refuse(name, "must be float32, float64, float16, or int16 for the bits of bfloat16");
}

void Arrays::check_shape(const char* name, const std::vector<Size>& shape, const std::vector<Size>& tail, bool of_keys, bool one) {
    std::vector<Size> full = lead;
    if (of_keys && groups > 1) full.back() /= groups;
    std::size_t rank = full.size();
    full.insert(full.end(), tail.begin(), tail.end());
    bool fits = shape.size() == full.size();
    for (std::size_t i = 0; fits && i < full.size(); i++) {
        bool broadcast = (i < rank || one) && shape[i] == 1;
        fits = full[i] < 0 || shape[i] == full[i] || broadcast;
    }
    if (!fits) refuse(name, "has shape " + text(shape) + ", expected " + text(full) + " or 1 where it broadcasts");
    for (Size n : shape)
        if (n >= LONGEST) refuse(name, "has shape " + text(shape) + ", which is too large");
}

const Size* Arrays::offsets(const std::vector<Size>& shape, const std::vector<Size>& strides, bool of_keys) {
    std::vector<Size> at(std::size_t(problems), 0);
    Size inner = problems;
    for (std::size_t r = 0; r < lead.size() && problems; r++) {
        inner /= lead[r];
        if (shape[r] == 1) continue;
        Size shared = of_keys && r + 1 == lead.size() ? groups : 1;
        for (Size n = 0; n < problems; n++) at[std::size_t(n)] += n / inner % lead[r] / shared * strides[r];
    }
    kept.push_back(std::move(at));
    return kept.back().data();
}

Rows Arrays::numbers(const char* name, const Array& array, Size count, bool of_keys) {
    check(name, array, {count}, of_keys);
    std::vector<Size> all = shape(array), strides = steps(array);
    return {array.data(), type(name, array), offsets(all, strides, of_keys), strides.back()};
}

Bound Arrays::bound(const char* name, const MaybeArray& array, Size queries) {
    if (!array) return {};
    if (array->dtype() != nanobind::dtype<std::int64_t>()) refuse(name, "must be int64");
    check(name, *array, {queries}, false, true);
    std::vector<Size> all = shape(*array), strides = steps(*array);
    Size stride = all.back() == 1 ? 0 : strides.back();
    return {static_cast<const std::int64_t*>(array->data()), offsets(all, strides, false), stride};
}

Keep Arrays::keep(const MaybeArray& array, Size queries, Size keys) {
    if (!array) return {};
    if (array->dtype() != nanobind::dtype<bool>()) refuse("keep", "must be bool");
    check("keep", *array, {queries, keys}, false, true);
    std::vector<Size> all = shape(*array), strides = steps(*array);
    std::size_t rank = all.size();
    return {static_cast<const bool*>(array->data()), offsets(all, strides, false),
            all[rank - 2] == 1 ? 0 : strides[rank - 2], all[rank - 1] == 1 ? 0 : strides[rank - 1]};
}

void Arrays::check_contiguous(const char* name, const std::vector<Size>& shape, const std::vector<Size>& strides,
                              const std::vector<Size>& expected) {
    if (shape != expected) refuse(name, "has shape " + text(shape) + ", expected " + text(expected));
    Size size = 1, stride = 1;
    for (Size n : shape) size *= n;
    for (std::size_t i = shape.size(); size && i-- > 0; stride *= shape[i])
        if (shape[i] > 1 && strides[i] != stride) refuse(name, "must be C-contiguous");
}

Gradient Arrays::gradient(const char* name, const std::optional<Output>& to, const MaybeArray& input, Type sums, bool of_keys) {
    if (!to || !input) return {};
    std::vector<Size> sizes = shape(*input), strides(sizes.size());
    void* data = contiguous(name, *to, sizes);
    if (type(name, *to) != sums) refuse(name, "must have the type of lse");
    Size stride = 1;
    for (std::size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) strides[i] = stride;
    const Size* at = offsets(sizes, strides, of_keys);
    std::unordered_set<Size> seen;
    std::vector<char> is_first(std::size_t(problems), 0);
    for (Size n = 0; n < problems; n++) is_first[std::size_t(n)] = seen.insert(at[n]).second;
    flags.push_back(std::move(is_first));
    return {data, at, reinterpret_cast<const bool*>(flags.back().data())};
}

void Arrays::key_sets(Call& call) {
    std::unordered_map<Size, Size> seen;
    std::vector<Size> set(std::size_t(problems), 0), first;
    for (Size n = 0; n < problems; n++) {
        auto [found, is_new] = seen.emplace(call.b.at[n], Size(first.size()));
        if (is_new) first.push_back(n);
        set[std::size_t(n)] = found->second;
    }
    call.key_sets = Size(first.size());
    kept.push_back(std::move(set));
    call.key_set = kept.back().data();
    kept.push_back(std::move(first));
    call.first_problem = kept.back().data();
}

void Arrays::each_its_own(Call& call) {
    std::vector<Size> all(std::size_t(problems), 0);
    std::iota(all.begin(), all.end(), Size(0));
    kept.push_back(std::move(all));
    call.key_sets = problems;
    call.key_set = call.first_problem = kept.back().data();
}

Groups Arrays::groups_by(const Size* at) {
    std::unordered_map<Size, Size> seen;
    std::vector<Size> number(std::size_t(problems), 0);
    for (Size n = 0; n < problems; n++) number[std::size_t(n)] = seen.emplace(at[n], Size(seen.size())).first->second;
    return group(number, Size(seen.size()));
}

Groups Arrays::tasks(const std::vector<std::vector<Size>>& shapes) {
    std::vector<Size> number(std::size_t(problems), 0);
    Size count = 1, inner = problems;
    for (std::size_t r = 0; r < lead.size() && problems; r++) {
        inner /= lead[r];
        bool shared = false;
        for (const auto& shape : shapes) shared |= shape[r] == 1;
        if (shared) continue;
        Size part = r + 1 == lead.size() ? groups : 1, sizes = lead[r] / part;
        for (Size n = 0; n < problems; n++)
            number[std::size_t(n)] = number[std::size_t(n)] * sizes + n / inner % lead[r] / part;
        count *= sizes;
    }
    return group(number, problems ? count : 0);
}

Groups Arrays::group(const std::vector<Size>& number, Size count) {
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
