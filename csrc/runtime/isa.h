// The instruction set that kernels run with, chosen at load time.
#pragma once

#include <string>
#include <vector>

#include "runtime/call.h"

namespace anyscore {

// Returns the instruction sets that this machine can run, the best first.
std::vector<std::string> isas();
// Returns the instruction set in use.
std::string isa();
// Sets the instruction set in use. Raises std::invalid_argument for one that cannot run here.
void use(const std::string& isa);
// Returns the kernels of the instruction set in use, for one type of the sums.
const KernelTable& kernels(Type sums);
// Returns the best set for this processor if the core was built without it; else an empty text.
std::string missing_isa();
// Returns whether these kernels may multiply two bfloat16 numbers at a time.
bool dots();

}  // namespace anyscore
