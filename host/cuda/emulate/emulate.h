// CUDA C++ for tests without a GPU: the kernels compile as plain C++, and each thread of a block is a fiber.
//
// Blocks run one after the other. A collective operation (barrier, shuffle, matrix product) switches to the next fiber
// until all threads of the block or warp have arrived. Copies to shared memory happen when they are waited for, so that
// a missing wait is a wrong result here too. This header emulates only what the kernels use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define DEVICE inline
#define KERNEL extern "C" void
// Shared by the fibers of a block, which run on one thread of the operating system.
#define __shared__ static thread_local
#define DYNAMIC_SHARED(name) unsigned char* name = emulate::block().dynamic_shared

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct bf16 {
    uint16_t bits;
};

inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __bfloat162float(bf16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }
inline bf16 __float2bfloat16(float value) {
    uint32_t bits = __float_as_uint(value);
    if (std::isnan(value)) return bf16{0x7fff};
    return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

namespace emulate {

// Copies of one thread that have not been waited for.
struct Copy {
    void* to;
    const void* from;
    bool valid;
    int group;
};

struct Fiber {
    void* stack_pointer;
    uint3 thread;
    bool finished;
    int group;
    std::vector<Copy> copies;
};

// The state of a barrier: how many have arrived, and how often all have.
struct Barrier {
    unsigned expected, arrived, generation;
};

struct Warp {
    Barrier barrier;
    // What the lanes exchange, of this and the previous collective operation.
    alignas(16) unsigned char slots[2][32][48];
};

struct Block {
    uint3 index;
    dim3 size, grid;
    Barrier barrier;
    unsigned or_value[2];
    // Threads that have waited for the kernels ahead of this one.
    unsigned waited;
    std::vector<Warp> warps;
    unsigned char* dynamic_shared;
};

Block& block();
Fiber& fiber();
void yield();
void wait(Barrier& barrier);

inline Warp& warp() { return block().warps[fiber().thread.x / 32]; }
inline unsigned lane() { return fiber().thread.x % 32; }

// Gives every lane the values of all lanes of its warp.
template <class T> inline const T& exchange(const T& value, unsigned (*from)(unsigned, unsigned), unsigned argument) {
    static_assert(sizeof(T) <= 48, "larger than a slot");
    Warp& own = warp();
    unsigned parity = own.barrier.generation & 1;
    memcpy(own.slots[parity][lane()], &value, sizeof(T));
    wait(own.barrier);
    return *reinterpret_cast<const T*>(own.slots[parity][from(lane(), argument) % 32]);
}
template <class T> struct Lanes {
    const unsigned char (*slots)[48];
    const T& operator[](unsigned lane) const { return *reinterpret_cast<const T*>(slots[lane]); }
};
template <class T> inline Lanes<T> gather(const T& value) {
    static_assert(sizeof(T) <= 48, "larger than a slot");
    Warp& own = warp();
    unsigned parity = own.barrier.generation & 1;
    memcpy(own.slots[parity][lane()], &value, sizeof(T));
    wait(own.barrier);
    return Lanes<T>{own.slots[parity]};
}

} // namespace emulate

#define threadIdx (emulate::fiber().thread)
#define blockIdx (emulate::block().index)
#define blockDim (emulate::block().size)
#define gridDim (emulate::block().grid)

inline void __syncthreads() { emulate::wait(emulate::block().barrier); }
inline void __syncwarp() { emulate::wait(emulate::warp().barrier); }
inline int __syncthreads_or(int value) {
    emulate::Block& block = emulate::block();
    unsigned parity = block.barrier.generation & 1;
    if (value) block.or_value[parity] = 1;
    emulate::wait(block.barrier);
    int any = block.or_value[parity];
    emulate::wait(block.barrier);
    block.or_value[parity] = 0;
    return any;
}
inline void __threadfence() {}
// Kernels run one after the other here; a kernel that must wait and does not is an error all the same.
inline void wait_for_previous() { emulate::block().waited++; }
inline void let_next_start() {}
template <class T> inline T __ldcg(const T* from) { return *from; }

template <class T> inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulate::exchange(value, [](unsigned lane, unsigned mask) { return lane ^ mask; }, unsigned(mask));
}
template <class T> inline T __shfl_sync(unsigned, T value, int from) {
    return emulate::exchange(value, [](unsigned, unsigned from) { return from; }, unsigned(from));
}
template <class T> inline T __shfl_up_sync(unsigned, T value, int offset) {
    return emulate::exchange(value, [](unsigned lane, unsigned by) { return lane < by ? lane : lane - by; }, unsigned(offset));
}
inline unsigned __ballot_sync(unsigned, int predicate) {
    auto lanes = emulate::gather(predicate);
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; lane++) bits |= unsigned(lanes[lane] != 0) << lane;
    return bits;
}

template <class T> inline T atomicAdd(T* to, T value) {
    T before = *to;
    *to = before + value;
    return before;
}
template <class T> inline T atomicMin(T* to, T value) {
    T before = *to;
    if (value < before) *to = value;
    return before;
}
template <class T> inline T atomicMax(T* to, T value) {
    T before = *to;
    if (value > before) *to = value;
    return before;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
inline float rsqrtf(float value) { return 1.f / sqrtf(value); }
inline float __expf(float value) { return expf(value); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    uint64_t bytes = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= unsigned((bytes >> (((selector >> (4 * i)) & 7) * 8)) & 0xff) << (8 * i);
    return result;
}
using std::max;
using std::min;
using std::isfinite;

inline uint32_t pack_bf16(float low, float high) {
    return uint32_t(__float2bfloat16(low).bits) | uint32_t(__float2bfloat16(high).bits) << 16;
}

struct EmulatedFragments {
    uint32_t a[4], b[2];
};
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    EmulatedFragments own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    auto lanes = emulate::gather(own);
    unsigned group = emulate::lane() / 4, thread = emulate::lane() % 4;
    for (int half = 0; half < 2; half++) {
        for (int column = 0; column < 2; column++) {
            float sum = c[2 * half + column];
            unsigned n = 2 * thread + unsigned(column);
            for (unsigned k = 0; k < 16; k += 2) {
                uint32_t x = lanes[group * 4 + (k % 8) / 2].a[half + (k >= 8 ? 2 : 0)];
                uint32_t y = lanes[n * 4 + (k % 8) / 2].b[k >= 8];
                sum += __uint_as_float(x << 16) * __uint_as_float(y << 16);
                sum += __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
            }
            c[2 * half + column] = sum;
        }
    }
}
inline void load_matrices(uint32_t (&to)[4], const void* row) {
    auto lanes = emulate::gather(row);
    unsigned lane = emulate::lane();
    for (unsigned i = 0; i < 4; i++)
        memcpy(&to[i], static_cast<const char*>(lanes[8 * i + lane / 4]) + 4 * (lane % 4), 4);
}
inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    auto lanes = emulate::gather(row);
    unsigned lane = emulate::lane();
    for (unsigned i = 0; i < 4; i++) {
        uint16_t values[2];
        for (unsigned k = 0; k < 2; k++)
            memcpy(&values[k], static_cast<const char*>(lanes[8 * i + 2 * (lane % 4) + k]) + 2 * (lane / 4), 2);
        to[i] = values[0] | uint32_t(values[1]) << 16;
    }
}

inline void copy_async(void* to, const void* from, bool valid) {
    if ((uintptr_t(to) | (valid ? uintptr_t(from) : 0)) % 16 != 0) {
        fprintf(stderr, "emulate: an asynchronous copy is not aligned to 16 bytes\n");
        abort();
    }
    emulate::Fiber& fiber = emulate::fiber();
    fiber.copies.push_back({to, from, valid, fiber.group});
}
inline void copy_async_commit() { emulate::fiber().group++; }
template <int PENDING> inline void copy_async_wait() {
    emulate::Fiber& fiber = emulate::fiber();
    size_t kept = 0;
    for (const emulate::Copy& copy : fiber.copies) {
        if (copy.group >= fiber.group - PENDING) {
            fiber.copies[kept++] = copy;
        } else if (copy.valid) {
            memcpy(copy.to, copy.from, 16);
        } else {
            memset(copy.to, 0, 16);
        }
    }
    fiber.copies.resize(kept);
}

inline uint4 load_streaming(const void* from) {
    if (uintptr_t(from) % 16 != 0) {
        fprintf(stderr, "emulate: a load of 16 bytes is not aligned\n");
        abort();
    }
    uint4 value;
    memcpy(&value, from, 16);
    return value;
}
