// What every kernel uses: storage types, vector loads, warp and block reductions, and the tensor-core wrappers.
//
// The same sources compile with nvcc and, for tests without a GPU, with a C++ compiler and `emulate/emulate.h`. PTX is
// therefore only in this file; each wrapper has an emulated body there.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <stdint.h>
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
typedef __nv_bfloat16 bf16;
#else
#include "emulate.h"
#endif

// Tokens per KV-cache block; `BLOCK_TOKENS` of the engine.
constexpr int BLOCK_TOKENS = 32;
constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;

#ifdef __CUDACC__
#define NEGATIVE_INFINITY __int_as_float(0xff800000)
#define POSITIVE_INFINITY __int_as_float(0x7f800000)
#else
#define NEGATIVE_INFINITY (-__builtin_inff())
#define POSITIVE_INFINITY (__builtin_inff())
#endif

// A kernel that starts before those ahead of it in its stream have ended (`Launch::overlaps`) waits for them before it reads
// what they write, or writes what they read; weights it may read before. Every thread waits, also one without work, so that
// the end of a kernel is the end of all before it. `let_next_start` lets the next such kernel start once all blocks of this
// one have started.
#ifdef __CUDACC__
DEVICE void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

// Storage <-> f32. All arithmetic is in f32.
DEVICE float to_float(float value) { return value; }
DEVICE float to_float(bf16 value) { return __bfloat162float(value); }
template <class T> DEVICE T from_float(float value);
template <> DEVICE float from_float<float>(float value) { return value; }
template <> DEVICE bf16 from_float<bf16>(float value) { return __float2bfloat16(value); }

// 16 bytes of values.
template <class T> struct alignas(16) Pack {
    static constexpr int N = 16 / int(sizeof(T));
    T v[N];
};
template <class T> DEVICE Pack<T> load_pack(const T* from) { return *reinterpret_cast<const Pack<T>*>(from); }
template <class T> DEVICE void store_pack(T* to, const Pack<T>& pack) { *reinterpret_cast<Pack<T>*>(to) = pack; }
// N values, a multiple of those of a pack.
template <int N, class T> DEVICE void load_values(const T* from, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::N) {
        Pack<T> pack = load_pack(from + i);
#pragma unroll
        for (int j = 0; j < Pack<T>::N; j++) to[i + j] = to_float(pack.v[j]);
    }
}

// Floats; four or more are at an address that is a multiple of 16 bytes.
template <int N> DEVICE void load_floats(float (&to)[N], const float* from) {
    if constexpr (N < 4) {
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = from[i];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            Pack<float> pack = load_pack(from + i);
#pragma unroll
            for (int j = 0; j < 4; j++) to[i + j] = pack.v[j];
        }
    }
}

// Two bf16 values of a register.
DEVICE float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
DEVICE float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }
DEVICE int lane_id() { return int(threadIdx.x & 31); }
DEVICE int warp_id() { return int(threadIdx.x >> 5); }

DEVICE float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}
DEVICE float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}

// The sum over the block, in every thread; `blockDim.x` is a multiple of 32. The order of summation depends only on
// the size of the block.
DEVICE float block_sum(float value) {
    __shared__ float shared[32];
    value = warp_sum(value);
    __syncthreads();
    if (lane_id() == 0) shared[warp_id()] = value;
    __syncthreads();
    float all = lane_id() < int(blockDim.x >> 5) ? shared[lane_id()] : 0.f;
    return warp_sum(all);
}
DEVICE float block_max(float value) {
    __shared__ float shared[32];
    value = warp_max(value);
    __syncthreads();
    if (lane_id() == 0) shared[warp_id()] = value;
    __syncthreads();
    float all = lane_id() < int(blockDim.x >> 5) ? shared[lane_id()] : NEGATIVE_INFINITY;
    return warp_max(all);
}

DEVICE float sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }

// The inverse root mean square of a row of the residual stream, in every thread of the block.
DEVICE float inverse_rms(const float* x, int width, float eps) {
    float sum = 0.f;
    for (int i = int(threadIdx.x) * 4; i < width; i += int(blockDim.x) * 4) {
        float values[4];
        load_values(x + i, values);
#pragma unroll
        for (int j = 0; j < 4; j++) sum += values[j] * values[j];
    }
    return rsqrtf(block_sum(sum) / float(width) + eps);
}

#ifdef __CUDACC__

// (low, high) as bf16, rounded to nearest even.
DEVICE uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// c += a b for a [16, 16] row-major and b [16, 8] column-major.
DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit values from shared memory; lane `8 i + r` gives the address of row `r` of matrix `i`.
DEVICE void load_matrices(uint32_t (&to)[4], const void* row) {
    uint32_t address = uint32_t(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
DEVICE void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    uint32_t address = uint32_t(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// Copies 16 bytes to shared memory in the background; zeros where `valid` is false, and `from` is not read then.
DEVICE void copy_async(void* to, const void* from, bool valid) {
    uint32_t address = uint32_t(__cvta_generic_to_shared(to));
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `PENDING` groups of copies of this thread are under way.
template <int PENDING> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// 16 bytes that no later kernel needs from the caches.
DEVICE uint4 load_streaming(const void* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(from));
    return value;
}

#endif

DEVICE uint4 zero_vector() {
    uint4 zero;
    zero.x = zero.y = zero.z = zero.w = 0u;
    return zero;
}
