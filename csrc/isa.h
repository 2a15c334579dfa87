// The instruction set that kernels run with, chosen at load time, and what all of them share.
#pragma once

#include <string>
#include <vector>

#include "call.h"

namespace anyscore {

// Those this machine can run, the best first.
std::vector<std::string> isas();
std::string isa();
// Raises std::invalid_argument for one that cannot run here.
void use(const std::string& isa);
const KernelTable& kernels();

// Memory that is given back; aligned to a cache line. Null if there is nothing to hold.
struct Block {
    Block() = default;
    explicit Block(void* data);
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    void* data = nullptr;
};

// `count` pieces of `size` bytes. Raises std::bad_alloc.
Block allocate(Size size, Size count);

}  // namespace anyscore
