// The frame around a pair that is compiled after the core, for one instruction set and one type of the sums.
// Generated code defines ANYSCORE_ISA, ANYSCORE_SUMS and the pair, Own, and includes this file.
#pragma once

#include "attention/gradients.h"
#include "attention/pack_keys.h"
#include "runtime/memory.cpp"  // each library has its own copy
#include "runtime/own_formulas.h"
#include "scorers/plain.h"

namespace anyscore {
namespace {

using Sums = ANYSCORE_SUMS;
using Scorer = ANYSCORE_ISA::Plain<ANYSCORE_ISA::Own, Sums>;

constexpr Kernels KERNELS = {ANYSCORE_ISA::forward<Scorer, Sums>, ANYSCORE_ISA::backward<Scorer, Sums>,
                             ANYSCORE_ISA::prepare<Scorer, Sums>};
decltype(parallel_for)* of_core = nullptr;

}  // namespace

// Runs tasks on the core's threads, which every library shares.
void parallel_for(int threads, std::int64_t count, void (*task)(void*, std::int64_t, int), void* context) {
    of_core(threads, count, task, context);
}

}  // namespace anyscore

extern "C" __attribute__((visibility("default"))) const anyscore::Kernels* anyscore_own_pair(
    decltype(anyscore::parallel_for)* parallel_for) {
    anyscore::of_core = parallel_for;
    return &anyscore::KERNELS;
}
