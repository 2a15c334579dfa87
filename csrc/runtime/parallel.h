// Threads for the kernels: a pool that survives a fork, and never waits where it could work.
#pragma once

#include <cstdint>

namespace anyscore {

// Runs task(context, index, slot) for every index in [0, count) on at most `threads` threads, the caller's included.
// Returns when all are done. Two tasks of a call with the same slot, in [0, threads), never overlap, so each slot may
// have scratch memory. The order of the indices is not fixed. Tasks must not throw.
//
// May be called from many threads at once, from inside a task and after a fork. A caller that finds the pool busy
// runs its tasks alone.
void parallel_for(int threads, std::int64_t count, void (*task)(void* context, std::int64_t index, int slot), void* context);

// Runs function(index, slot) in the same way.
template <class Function> void for_each(int threads, std::int64_t count, Function&& function) {
    parallel_for(
        threads, count, [](void* f, std::int64_t index, int slot) { (*(Function*)f)(index, slot); }, (void*)&function);
}

// Runs tasks on PyTorch's OpenMP threads from now on. Such a thread spins for milliseconds after its last operation,
// and would compete with the pool's threads. Its OpenMP library has the function GOMP_parallel, `parallel`. A forked
// child returns to the pool, as borrowed threads would hang there.
void borrow_threads(void (*parallel)(void (*)(void*), void*, unsigned, unsigned));

// While it exists, this thread shares its tasks with the pool, never with borrowed threads. OpenMP would make a new
// team for every calling thread of another framework.
struct OwnThreads {
    OwnThreads();
    ~OwnThreads();
    OwnThreads(const OwnThreads&) = delete;
};

}  // namespace anyscore
