// Checks of csrc/runtime/parallel.cpp and own_formulas.cpp, compiled and run by test_parallel.py: `parallel NAME` exits with 0.
#include "runtime/own_formulas.h"
#include "runtime/parallel.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using Task = std::function<void(std::int64_t, int)>;

void run(int threads, std::int64_t count, const Task& task) {
    anyscore::parallel_for(
        threads, count,
        [](void* context, std::int64_t index, int slot) {
            (*static_cast<const Task*>(context))(index, slot);
        },
        const_cast<Task*>(&task));
}

void expect(bool truth, const char* what) {
    if (truth) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::fflush(stderr);
    _exit(1);
}

// Each index once, slots in range, and never two tasks in a slot. Slots are counted without a lock:
// ThreadSanitizer sees it if two threads share one.
void once_each(int threads, std::int64_t count) {
    std::vector<int> times(count, 0);
    std::vector<std::int64_t> of_slot(threads < 1 ? 1 : threads, 0);
    run(threads, count, [&](std::int64_t index, int slot) {
        expect(slot >= 0 && slot < static_cast<int>(of_slot.size()), "slot in [0, threads)");
        ++times[index];
        ++of_slot[slot];
    });
    std::int64_t sum = 0;
    for (std::int64_t tasks : of_slot) sum += tasks;
    expect(sum == count, "as many tasks as indices");
    for (int n : times) expect(n == 1, "each index once");
}

// Whether `threads` tasks were ever under way together; each waits for the others a while.
bool together(int threads, std::chrono::milliseconds patience = std::chrono::seconds(5)) {
    std::atomic<int> here{0};
    std::atomic<bool> all{false};
    std::vector<std::atomic<int>> in_slot(threads);
    run(threads, threads, [&](std::int64_t, int slot) {
        expect(++in_slot[slot] == 1, "never two tasks in a slot");
        if (++here == threads) all = true;
        const auto end = std::chrono::steady_clock::now() + patience;
        while (!all && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        --here;
        --in_slot[slot];
    });
    return all;
}

void covers() {
    for (int threads : {-1, 0, 1, 2, 3, 7})
        for (std::int64_t count : {0, 1, 2, 3, 5, 64, 1000}) once_each(threads, count);
}

void shares() {
    expect(together(2), "two threads work together");
    expect(together(5), "the pool grows");
    expect(together(2), "and serves fewer");
}

void concurrent() {
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 8; ++caller)
        callers.emplace_back([caller] {
            for (int call = 0; call < 500; ++call) once_each(1 + (caller + call) % 4, call % 13);
        });
    for (std::thread& caller : callers) caller.join();
    expect(together(2), "the pool is free again");
    run(2, 2, [&](std::int64_t index, int) {
        if (index) return;
        std::thread([] {
            expect(!together(2, std::chrono::milliseconds(50)), "who finds it busy runs alone");
        }).join();
    });
}

void nested() {
    std::atomic<int> inner{0};
    run(3, 20, [&](std::int64_t, int) {
        const std::thread::id mine = std::this_thread::get_id();
        run(3, 30, [&](std::int64_t, int slot) {
            expect(slot == 0 && std::this_thread::get_id() == mine, "a call in a task runs alone");
            ++inner;
        });
    });
    expect(inner == 600, "all tasks of the inner calls");
    expect(together(2), "and the pool is free again");
}

void forked() {
    expect(together(3), "the parent has a pool");
    std::atomic<bool> stop{false};
    std::thread computes([&] {
        while (!stop) once_each(3, 50);
    });
    for (int child = 0; child < 100; ++child) {
        const pid_t process = fork();
        if (process == 0) {
            alarm(20);  // a child that hangs dies of it
            once_each(3, 100);
            _exit(together(2) ? 0 : 1);
        }
        int status = 0;
        expect(process > 0 && waitpid(process, &status, 0) == process, "a child");
        expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child computes with two threads");
    }
    stop = true;
    computes.join();
    expect(together(2), "the parent keeps its pool");
}

void forked_pairs() {
    std::atomic<bool> stop{false};
    std::thread asks([&] {
        while (!stop) anyscore::find_own("a pair", anyscore::Type::F32);
    });
    for (int child = 0; child < 100; ++child) {
        const pid_t process = fork();
        if (process == 0) {
            alarm(20);
            _exit(anyscore::find_own("a pair", anyscore::Type::F32).forward ? 1 : 0);
        }
        int status = 0;
        expect(process > 0 && waitpid(process, &status, 0) == process, "a child");
        expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child finds what there is");
    }
    stop = true;
    asks.join();
}

void no_threads() {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = pages * sysconf(_SC_PAGESIZE) + (4 << 20);  // less than the stack of a thread
    expect(setrlimit(RLIMIT_AS, &limit) == 0, "memory can be limited");
    once_each(4, 100);
    expect(!together(2, std::chrono::milliseconds(50)), "there was no memory for a thread");
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_AS, &limit);
    expect(together(2), "threads are tried again");
}

}  // namespace

int main(int, char** arguments) {
    const std::string name = arguments[1];
    if (name == "covers") covers();
    else if (name == "shares") shares();
    else if (name == "concurrent") concurrent();
    else if (name == "nested") nested();
    else if (name == "forked") forked();
    else if (name == "forked_pairs") forked_pairs();
    else if (name == "no_threads") no_threads();
    else return 2;
    return 0;
}
