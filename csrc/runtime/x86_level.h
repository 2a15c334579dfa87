// Returns the x86-64 level of the processor, numbered as in -march=x86-64-v3; 0 on other processors. CMakeLists.txt
// also runs it, to choose the sets to build.
#pragma once

namespace anyscore {

inline int x86_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                        __builtin_cpu_supports("bmi2");
    const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    return has_v4 ? 4 : has_v3 ? 3 : 1;
#else
    return 0;
#endif
}

}  // namespace anyscore
