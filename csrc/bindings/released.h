// Python's lock, given back while the kernels compute.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace anyscore {

// Lets other threads of Python run as long as it lives.
class Released {
public:
    Released() : thread(PyEval_SaveThread()) {}
    Released(const Released&) = delete;

    ~Released() {
        // A thread that comes back while Python ends has nothing to go on with, and waits here. Before 3.14 Python lets such
        // a thread go by unwinding its stack, which no function of nanobind lets pass: the process would be terminated.
        try {
            PyEval_RestoreThread(thread);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }

private:
    PyThreadState* thread;
};

}  // namespace anyscore
