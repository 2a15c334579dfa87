// The instruction set that kernels run with, chosen at load time.
#pragma once

#include <string>
#include <vector>

#include "runtime/call.h"

namespace anyscore {

// Those this machine can run, the best first.
std::vector<std::string> isas();
std::string isa();
// Raises std::invalid_argument for one that cannot run here.
void use(const std::string& isa);
// Of this set and one type of the sums.
const KernelTable& kernels(Type sums);
// The set that this processor would run, had the core been built for it; empty if there is none.
std::string missing_isa();
// Whether they may multiply two bfloat16 numbers at a time.
bool dots();

}  // namespace anyscore
