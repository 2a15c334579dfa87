// Threads for the kernels: a pool that survives fork and never waits where it could work.
#pragma once

#include <cstdint>

namespace anyscore {

// Runs task(context, index, slot) for every index in [0, count) on at most `threads` threads, the
// caller's included, and returns when all are done. `slot` is in [0, threads); two tasks of a call
// with the same slot never overlap, so scratch memory can be had per slot. The order of the indices
// is not fixed. Tasks must not throw.
//
// May be called from many threads at once, from inside a task and after a fork. Whoever finds
// the pool busy runs its tasks alone.
void parallel_for(int threads, std::int64_t count, void (*task)(void* context, std::int64_t index, int slot), void* context);

// Runs function(index, slot) in the same way.
template <class Function> void for_each(int threads, std::int64_t count, Function&& function) {
    parallel_for(
        threads, count, [](void* f, std::int64_t index, int slot) { (*(Function*)f)(index, slot); }, (void*)&function);
}

// From now on, run tasks on the OpenMP threads that PyTorch has: beside threads of ours its own would
// go on spinning for milliseconds after its last operation. `parallel` is GOMP_parallel of the
// library that PyTorch uses. A forked child, where those threads would hang, falls back to the pool.
void borrow_threads(void (*parallel)(void (*)(void*), void*, unsigned, unsigned));

// For as long as it lives, this thread shares its tasks with threads of ours, never with borrowed
// ones: OpenMP would make a team anew for every thread of another framework that calls.
struct OwnThreads {
    OwnThreads();
    ~OwnThreads();
    OwnThreads(const OwnThreads&) = delete;
};

}  // namespace anyscore
