#include "isa.h"

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
    bool runs;
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
#endif

std::vector<Isa> known() {
    std::vector<Isa> all;
#if defined(ANYSCORE_X86)
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
              __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    all.push_back({"avx512-estimate", &avx512::ESTIMATING, v4});
    all.push_back({"avx512", &avx512::DIVIDING, v4});
    if (divides_fast()) std::swap(all[0], all[1]);
    all.push_back({"avx2", &avx2::DIVIDING, v3});
#endif
    all.push_back({"baseline", &baseline::DIVIDING, true});
    return all;
}

Isa best() {
    for (const Isa& one : known())
        if (one.runs) return one;
    return {};
}

std::atomic<const KernelTable*>& current() {
    static std::atomic<const KernelTable*> table{best().table};
    return table;
}

}  // namespace

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const Isa& one : known())
        if (one.runs) names.push_back(one.name);
    return names;
}

std::string isa() {
    for (const Isa& one : known())
        if (one.table == current().load()) return one.name;
    return "";
}

void use(const std::string& name) {
    for (const Isa& one : known())
        if (one.runs && name == one.name) {
            current() = one.table;
            return;
        }
    std::string names;
    for (const std::string& one : isas()) names += (names.empty() ? "" : ", ") + one;
    throw std::invalid_argument("isa is \"" + name + "\", expected one of " + names + ".");
}

const KernelTable& kernels() { return *current().load(); }

}  // namespace anyscore
