// Pairs that were compiled after the core, each a library of its own: their kernels, by name and type.
#pragma once

#include <string>

#include "runtime/call.h"
#include "runtime/parallel.h"

namespace anyscore {

// What such a library has under the name anyscore_own_pair: it takes the threads of the core, and gives the
// kernels of one type of the sums.
using OwnPair = const Kernels*(decltype(parallel_for)*);

// Keeps the kernels of a library, which stays loaded, in place of those that were there.
void register_pair(const std::string& name, Type sums, OwnPair* library);

// Of no functions if there are none.
Kernels find_own(const std::string& name, Type sums);

}  // namespace anyscore
