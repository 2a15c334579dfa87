#include "isa.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#if defined(ANYSCORE_X86)
#include <cpuid.h>
#endif

namespace anyscore {

namespace baseline {
extern const KernelTable DIVIDING;
}
#if defined(ANYSCORE_X86)
namespace avx2 {
extern const KernelTable DIVIDING;
}
namespace avx512 {
extern const KernelTable DIVIDING, ESTIMATING;
}
#endif

namespace {

struct Isa {
    const char* name;
    const KernelTable* table;
    bool dots, runs;
};

#if defined(ANYSCORE_X86)
// Whether a division of 16 numbers beats an estimate and Newton's step. It takes 2.5 cycles on Zen 5 and
// 10 on Emerald Rapids; whatever was not measured is taken to be slow.
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

// Whether the processor takes pairs of bfloat16 numbers at the rate of single ones. Emerald Rapids takes a quarter as
// many, and so has half the products in the same time.
bool dots_pay() { return __builtin_cpu_is("amd"); }
#endif

std::vector<Isa> find_all() {
    std::vector<Isa> all;
#if defined(ANYSCORE_X86)
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
              __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    all.push_back({"avx512-estimate", &avx512::ESTIMATING, false, v4});
    all.push_back({"avx512", &avx512::DIVIDING, false, v4});
    if (divides_fast()) std::swap(all[0], all[1]);
    all.insert(dots_pay() ? all.begin() : all.end(), {"avx512-bf16", all[0].table, true, v4 && has_dots()});
    all.push_back({"avx2", &avx2::DIVIDING, false, v3});
#endif
    all.push_back({"baseline", &baseline::DIVIDING, false, true});
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

const KernelTable& kernels() { return *current().load()->table; }

bool dots() { return current().load()->dots; }

}  // namespace anyscore
