// Python's global interpreter lock, released while the kernels compute.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace anyscore {

// Releases the lock while it exists, so that other threads of Python run.
class Released {
public:
    Released() : thread(PyEval_SaveThread()) {}
    Released(const Released&) = delete;

    ~Released() {
        // A thread that returns while Python ends cannot go on, and waits here. Python before 3.14 ends such a thread
        // by unwinding its stack. No function of nanobind can be unwound: the process would be terminated.
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
