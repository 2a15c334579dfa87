#include "runtime/isa.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "runtime/x86_level.h"

#if defined(ANYSCORE_AVX512)
#include <cpuid.h>
#endif

namespace anyscore {

// The tables of kernel.cpp.
#define ANYSCORE_TABLES(isa) \
    namespace isa { \
    template <class T> struct Tables { \
        static const KernelTable DIVIDING, ESTIMATING; \
    }; \
    }
ANYSCORE_TABLES(baseline)
ANYSCORE_TABLES(avx2)
ANYSCORE_TABLES(avx512)
#undef ANYSCORE_TABLES

namespace {

struct Isa {
    const char* name;
    const KernelTable *of_floats, *of_doubles;
    bool dots, runs;
};

#if defined(ANYSCORE_AVX512)
// Returns whether a division of 16 numbers beats an estimate and a step of Newton's method. A division takes 2.5
// cycles on Zen 5 and 10 on Emerald Rapids; processors without a measurement count as slow.
bool divides_fast() {
    unsigned eax, ebx, ecx, edx;
    if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
    unsigned family = (eax >> 8 & 15) + (eax >> 20 & 255);
    return family >= 0x1a;
}

bool has_dots() {
#if defined(ANYSCORE_EMULATE_DOTS)
    return true;
#elif defined(ANYSCORE_DOTS)
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);
#else
    return false;
#endif
}

// Returns whether the processor multiplies two bfloat16 numbers as fast as one float32. Emerald Rapids starts a
// quarter as many such instructions, and so has half the products in the same time.
bool dots_pay() { return __builtin_cpu_is("amd"); }
#endif

std::vector<Isa> find_all() {
    std::vector<Isa> all;
#if defined(ANYSCORE_AVX512)
    const bool v4 = x86_level() >= 4;
    all.push_back({"avx512-estimate", &avx512::Tables<float>::ESTIMATING, &avx512::Tables<double>::ESTIMATING, false, v4});
    all.push_back({"avx512", &avx512::Tables<float>::DIVIDING, &avx512::Tables<double>::DIVIDING, false, v4});
    if (divides_fast()) std::swap(all[0], all[1]);
    Isa with_dots = {"avx512-bf16", all[0].of_floats, all[0].of_doubles, true, v4 && has_dots()};
    all.insert(dots_pay() ? all.begin() : all.end(), with_dots);
#endif
#if defined(ANYSCORE_AVX2)
    all.push_back({"avx2", &avx2::Tables<float>::DIVIDING, &avx2::Tables<double>::DIVIDING, false, x86_level() >= 3});
#endif
    all.push_back({"baseline", &baseline::Tables<float>::DIVIDING, &baseline::Tables<double>::DIVIDING, false, true});
    return all;
}

const std::vector<Isa>& known() {
    static const std::vector<Isa> all = find_all();
    return all;
}

std::atomic<const Isa*>& current() {
    static std::atomic<const Isa*> one{&*std::find_if(known().begin(), known().end(), [](const Isa& x) { return x.runs; })};
    return one;
}

}  // namespace

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const Isa& one : known())
        if (one.runs) names.push_back(one.name);
    return names;
}

std::string isa() { return current().load()->name; }

void use(const std::string& name) {
    for (const Isa& one : known())
        if (one.runs && name == one.name) {
            current() = &one;
            return;
        }
    std::string names;
    for (const std::string& one : isas()) names += (names.empty() ? "" : ", ") + one;
    throw std::invalid_argument("isa is \"" + name + "\", expected one of " + names + ".");
}

const KernelTable& kernels(Type sums) {
    const Isa& isa = *current().load();
    return sums == Type::F64 ? *isa.of_doubles : *isa.of_floats;
}

std::string missing_isa() {
    const char* best = x86_level() >= 4 ? "avx512" : x86_level() == 3 ? "avx2" : "baseline";
    for (const Isa& one : known())
        if (std::string(one.name) == best) return "";
    return best;
}

bool dots() { return current().load()->dots; }

}  // namespace anyscore
