#include "runtime/own_formulas.h"

#include <pthread.h>

#include <map>
#include <mutex>
#include <utility>

namespace anyscore {
namespace {

struct Registry {
    std::mutex mutex;
    std::map<std::pair<std::string, Type>, Kernels> kernels;
    std::map<std::pair<double, Type>, OwnOuter> outers;
};

// Never destroyed: threads may still compute when the process ends.
Registry& registry() {
    static Registry& made = *new Registry;
    return made;
}

// A fork waits until no thread holds the mutex: a child would wait for a thread that it lacks.
[[maybe_unused]] const int registered =
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, [] { registry().mutex.unlock(); });

}  // namespace

void register_pair(const std::string& name, Type sums, OwnPair* library) {
    const Kernels kernels = *library(&parallel_for);
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.kernels[{name, sums}] = kernels;
}

Kernels find_own(const std::string& name, Type sums) {
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.kernels.find({name, sums});
    return found == all.kernels.end() ? Kernels{} : found->second;
}

void register_outer(double number, Type sums, OwnOuter function) {
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.outers[{number, sums}] = function;
}

OwnOuter find_outer(double number, Type sums) {
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.outers.find({number, sums});
    return found == all.outers.end() ? nullptr : found->second;
}

}  // namespace anyscore
