// The memory of a call: owned blocks, pieces of a block, and memory for each thread.
#pragma once

#include <new>

#include "runtime/call.h"

namespace anyscore {

// An owned block of memory, aligned to a cache line and freed by the destructor. Null if it is empty.
struct Block {
    Block() = default;
    explicit Block(void* data);
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    void* data = nullptr;
};

// Allocates `count` pieces of `size` bytes. Raises std::bad_alloc.
Block allocate(Size size, Size count);

// Hands out pieces of one block of memory, each aligned to a cache line; without a block, only counts bytes. Always
// inline: the linker would share a copy of take<float> among the instruction sets.
class Arena {
public:
    __attribute__((always_inline)) explicit Arena(void* block) : block((char*)block) {}
    template <class T> __attribute__((always_inline)) T* take(Size count) {
        T* piece = block ? (T*)(block + used) : nullptr;
        used += (count * Size(sizeof(T)) + 63) / 64 * 64;
        return piece;
    }
    Size used = 0;

private:
    char* block;
};

// `count` tasks of one class, one for each thread, kept from index to index. Each task takes its memory from its
// arena, and is constructed as Task(arena, call), of a call of any type.
template <class Task> class Slots {
public:
    template <class AnyCall> Slots(const AnyCall& call, int count) : size(measure(call)), block(allocate(size, count)) {
        for (int slot = 0; slot < count; slot++) {
            Arena arena((char*)block.data + size * slot);
            Task* place = arena.take<Task>(1);
            new (place) Task(arena, call);
        }
    }
    Task& task(int slot) const { return *(Task*)((char*)block.data + size * slot); }

private:
    template <class AnyCall> static Size measure(const AnyCall& call) {
        Arena arena(nullptr);
        arena.take<Task>(1);
        Task task(arena, call);
        return (arena.used + 64 + 4095) / 4096 * 4096;
    }
    Size size;
    Block block;
};

}  // namespace anyscore
