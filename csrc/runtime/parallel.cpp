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

// How long a thread looks for work, or for the end of a job, before it sleeps: about as long as it
// takes to wake it.
constexpr std::chrono::microseconds SPIN_TIME{30};

// How a thread rounds, and whether it takes subnormal numbers for 0: XLA's threads and those of
// torch.set_flush_denormal do, threads of ours do not by themselves.
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
    static constexpr unsigned RAISED = 0x3f;  // what has happened so far: not how a thread computes
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
    const FloatControl callers{};  // every thread's during the job, so that bits do not depend on threads

    void run(int slot) {
        const FloatControl own;
        const bool differs = own != callers;
        if (differs) callers.adopt();
        for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, index, slot);
        if (differs) own.adopt();
    }
};

// Not std::this_thread::yield: beside another busy program that gives away milliseconds.
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

// One job at a time. `mutex` guards every member; the atomic ones are also looked at without it.
class Pool {
public:
    // False, and nothing done, if another thread has the pool, or this one in a task.
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
        free_slots = 0;  // nobody needs a worker that has not come by now
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
        } catch (...) {  // the system gives no more threads: fewer will do
        }
    }

    // Linux wakes a sleeper on the waker's processor when the others seem taken, and to a guest of a
    // hypervisor a sleeping processor does: the worker would wait there for the caller to finish.
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
    int avoided = NONE;  // the processor that the workers keep off
    std::atomic<int> free_slots{0};  // workers that may still join the job: their slots are 1 to places
    std::atomic<int> busy{0};  // workers in it
};

// Whether this thread runs a task on borrowed threads, or wants none.
thread_local bool in_borrowed = false, wants_own = false;

// Never destroyed: workers may sleep in it when the process ends.
std::atomic<Pool*> pool{nullptr};

// Null if there is no memory for one.
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

// False, and nothing done, if there are none to borrow or another thread has them.
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

// A child has none of its parent's threads, and one of those may have held the mutex: the old pool
// is left behind, and a new one made when it is needed. Registered when the library is loaded.
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
