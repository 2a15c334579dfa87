// Formulas compiled after the core, each in a library of its own: kernels of pairs, by name and type; outer functions,
// by number and type.
#pragma once

#include <string>

#include "runtime/call.h"
#include "runtime/parallel.h"

namespace anyscore {

// The function anyscore_own_pair of such a library: takes the parallel_for of the core, and returns the kernels for
// one type of the sums.
using OwnPair = const Kernels*(decltype(parallel_for)*);

// Registers the kernels of a library, which stays loaded, and replaces earlier ones of that name and type.
void register_pair(const std::string& name, Type sums, OwnPair* library);

// Returns the kernels of a registered pair; null functions if there are none.
Kernels find_own(const std::string& name, Type sums);

// The same for outer functions; null if there is none of that number.
void register_outer(double number, Type sums, OwnOuter function);
OwnOuter find_outer(double number, Type sums);

}  // namespace anyscore
