#include "runtime/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace anyscore {
namespace {

// A thread spins this long for work, or for the end of a job, before it sleeps: about as long as a wake-up takes.
constexpr std::chrono::microseconds SPIN_TIME{30};

// The floating-point control word of a thread: how it rounds, and whether subnormal numbers count as 0. XLA's threads
// count them as 0, and PyTorch's after torch.set_flush_denormal, but new threads do not.
class FloatControl {
public:
    FloatControl() : word(read()) {}
    bool operator!=(const FloatControl& other) const { return word != other.word; }

    void adopt() const {
#if defined(__x86_64__)
        _mm_setcsr(word);
#elif defined(__aarch64__)
        asm volatile("msr fpcr, %0" : : "r"(word));
#endif
    }

private:
#if defined(__x86_64__)
    static constexpr unsigned RAISED = 0x3f;  // exception flags, which do not change results
    static unsigned read() { return _mm_getcsr() & ~RAISED; }
    unsigned word;
#elif defined(__aarch64__)
    static std::uint64_t read() {
        std::uint64_t word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    std::uint64_t word;
#else
    static int read() { return 0; }
    int word;
#endif
};

struct Job {
    void (*task)(void*, std::int64_t, int);
    void* context;
    std::int64_t count;
    std::atomic<std::int64_t> next{0};
    const FloatControl callers{};  // all threads adopt it, so that bits do not depend on threads

    void run(int slot) {
        const FloatControl own;
        const bool differs = own != callers;
        if (differs) callers.adopt();
        for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, index, slot);
        if (differs) own.adopt();
    }
};

// Not std::this_thread::yield: beside another busy program, a yield gives milliseconds away.
void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Condition> void spin_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + SPIN_TIME;
    while (!condition() && std::chrono::steady_clock::now() < end) pause();
}

// A pool of threads, which runs one job at a time. `mutex` guards every member; atomic ones are also read without it.
class Pool {
public:
    // Runs a job. Returns false, and does nothing, if another thread has the pool, or this one in a task.
    bool run(Job& mine, int helpers) {
        std::unique_lock<std::mutex> lock(mutex);
        if (job) return false;
        grow(helpers);
        keep_off_this_processor();
        job = &mine;
        free_slots = std::min(helpers, int(workers.size()));
        const int wanted = free_slots;
        lock.unlock();
        for (int i = 0; i < wanted; i++) work.notify_one();

        mine.run(0);

        lock.lock();
        free_slots = 0;  // a worker that comes later is not needed
        if (busy) {
            lock.unlock();
            spin_until([this] { return busy == 0; });
            lock.lock();
            done.wait(lock, [this] { return busy == 0; });
        }
        job = nullptr;
        return true;
    }

private:
    void grow(int wanted) {
        try {
            workers.reserve(wanted);
            while (int(workers.size()) < wanted) {
                std::thread worker([this] { serve(); });
                workers.push_back(worker.native_handle());
                worker.detach();
                avoided = NONE;
            }
        } catch (...) {  // the system has no more threads: the job runs on fewer
        }
    }

    // Keeps workers off the caller's processor. Linux wakes a sleeper on the waker's processor when the others seem
    // taken, as a sleeping processor does to a guest of a hypervisor. The worker would then wait for the caller to
    // finish.
    void keep_off_this_processor() {
#if defined(__linux__)
        const int here = sched_getcpu();
        if (here == avoided) return;
        cpu_set_t others;
        if (here < 0 || sched_getaffinity(0, sizeof others, &others) != 0) return;
        CPU_CLR(here, &others);
        if (CPU_COUNT(&others) == 0) return;
        for (pthread_t worker : workers) pthread_setaffinity_np(worker, sizeof others, &others);
        avoided = here;
#endif
    }

    [[noreturn]] void serve() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            work.wait(lock, [this] { return free_slots > 0; });
            Job& current = *job;
            const int slot = free_slots--;
            busy++;
            lock.unlock();
            current.run(slot);
            lock.lock();
            if (--busy == 0) done.notify_one();
            lock.unlock();
            spin_until([this] { return free_slots > 0; });
            lock.lock();
        }
    }

    static constexpr int NONE = -1;

    std::mutex mutex;
    std::condition_variable work, done;
    Job* job = nullptr;
    std::vector<std::thread::native_handle_type> workers;
    int avoided = NONE;  // the processor that workers stay away from
    std::atomic<int> free_slots{0};  // workers that may still join the job, with the slots 1 to free_slots
    std::atomic<int> busy{0};  // workers in the job
};

// Whether this thread runs a task on borrowed threads; and whether it refuses borrowed threads.
thread_local bool in_borrowed = false, wants_own = false;

// Never destroyed: workers may sleep in it when the process ends.
std::atomic<Pool*> pool{nullptr};

// Returns the pool, made by the first call; null if there is no memory for it.
Pool* the_pool() {
    Pool* found = pool.load();
    if (found) return found;
    Pool* made = new (std::nothrow) Pool;
    if (pool.compare_exchange_strong(found, made)) return made;
    delete made;  // another thread was faster
    return found;
}

// GOMP_parallel(function, data, number of threads, flags), or null.
std::atomic<void (*)(void (*)(void*), void*, unsigned, unsigned)> borrowed{nullptr};
std::mutex borrower;

// Runs a job on borrowed threads. Returns false, and does nothing, if there are none or another thread has them.
bool share_borrowed(Job& job, int helpers) {
    auto* parallel = borrowed.load();
    if (!parallel || helpers <= 0 || in_borrowed) return false;
    std::unique_lock<std::mutex> lock(borrower, std::try_to_lock);
    if (!lock) return false;
    struct Team {
        Job& job;
        std::atomic<int> slots{0};
    } team{job};
    parallel(
        [](void* data) {
            Team& team = *(Team*)data;
            in_borrowed = true;
            team.job.run(team.slots++);
            in_borrowed = false;
        },
        &team, unsigned(helpers + 1), 0);
    return true;
}

// A forked child has none of its parent's threads, and one of these may have held the mutex. So a child leaves the
// old pool behind, and makes a new one when it needs one. Registered when the library is loaded.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr), borrowed.store(nullptr); });

bool share(Job& job, int helpers) {
    Pool* found = helpers > 0 ? the_pool() : nullptr;
    return found && found->run(job, helpers);
}

}  // namespace

void parallel_for(int threads, std::int64_t count, void (*task)(void*, std::int64_t, int), void* context) {
    Job job{task, context, count};
    const int helpers = int(std::min<std::int64_t>(threads, count)) - 1;
    if (borrowed.load() && !wants_own ? !share_borrowed(job, helpers) : !share(job, helpers)) job.run(0);
}

void borrow_threads(void (*parallel)(void (*)(void*), void*, unsigned, unsigned)) { borrowed = parallel; }

OwnThreads::OwnThreads() { wants_own = true; }
OwnThreads::~OwnThreads() { wants_own = false; }

}  // namespace anyscore
