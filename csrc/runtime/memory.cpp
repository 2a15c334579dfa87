#include "runtime/memory.h"

#include <cstdlib>
#include <utility>

namespace anyscore {

Block::Block(void* data) : data(data) {}
Block::Block(Block&& other) noexcept : data(std::exchange(other.data, nullptr)) {}
Block& Block::operator=(Block&& other) noexcept {
    std::swap(data, other.data);
    return *this;
}
Block::~Block() { std::free(data); }

Block allocate(Size size, Size count) {
    Size bytes;
    if (size < 0 || count < 0 || __builtin_mul_overflow(size, count, &bytes) || bytes > Size(1) << 62)
        throw std::bad_alloc();
    if (bytes == 0) return {};
    void* data = std::aligned_alloc(64, std::size_t((bytes + 63) / 64 * 64));
    if (!data) throw std::bad_alloc();
    return Block(data);
}

}  // namespace anyscore
