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
        // A thread that is back when Python ends has nothing to go on with. Before 3.14 Python lets it go by unwinding its
        // stack, which would terminate the process where a function of nanobind does not let that pass: it stays here.
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
