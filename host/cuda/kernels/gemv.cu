// Products of few rows with a weight matrix, y [tokens, n] = x [tokens, k] w [n, k]^T, bound by reading the weights once.
//
// The weights are the left operand of the tensor cores: a block has 16 rows of `w`, and its warps share k. The weights come
// through shared memory by asynchronous copies, of which every warp has four under way at any time, 64 KiB per block: with
// two or three blocks per multiprocessor that is more than memory delivers during its latency. Each thread copies what it
// multiplies itself, because the order of k inside a product may be any as long as both operands have the same; so only the
// partial sums of the warps need a barrier. The copies begin before the kernel waits for the one that writes x.
//
// A norm of one or two rows before the product needs no kernel of its own: every block computes it.
#include "common.cuh"

struct GemvArguments {
    // [n, k]; with a gated activation [2 n, k], gate rows first. k is a multiple of 8.
    const bf16* w;
    // bf16 or, with a norm, the residual stream in f32.
    const void* x;
    int x_stride;
    // bf16 or, with `f32_output`, f32.
    void* y;
    int y_stride;
    int n, k, tokens;
    // Null, or the gain of the norm of x.
    const float* gain;
    float eps;
    // Adds to y.
    int accumulate;
    int f32_output;
};

// The norm of rows of the residual stream, in shared memory.
DEVICE void normalize(const GemvArguments& a, bf16* normed) {
    for (int token = 0; token < a.tokens; token++) {
        const float* x = static_cast<const float*>(a.x) + size_t(token) * a.x_stride;
        float scale = inverse_rms(x, a.k, a.eps);
        for (int i = int(threadIdx.x) * 8; i < a.k; i += int(blockDim.x) * 8) {
            float values[8], gains[8];
            load_values(x + i, values);
            load_values(a.gain + i, gains);
            Pack<bf16> pack;
#pragma unroll
            for (int j = 0; j < 8; j++) pack.v[j] = from_float<bf16>(values[j] * scale * gains[j]);
            store_pack(normed + size_t(token) * a.k + i, pack);
        }
    }
    __syncthreads();
}

// NT tiles of 8 tokens. GATED: y = silu(w_gate x) * (w_up x); a block has 8 rows of each. NORM: of x. Values round where
// separate kernels round.
template <int NT, bool GATED, bool NORM> DEVICE void gemv(const GemvArguments& a) {
    // Values of k per copy of a warp, and copies under way.
    constexpr int SLAB = 64, STAGES = 4, ROWS = GATED ? 8 : 16;
    // Copies [warps, STAGES, 4, 32] of 16 bytes, partial sums [warps, 8 NT, 16], with a norm the normalized rows [tokens, k].
    DYNAMIC_SHARED(shared);
    int warps = int(blockDim.x >> 5), warp = warp_id(), lane = lane_id(), group = lane >> 2, thread = lane & 3;
    uint4* copies = reinterpret_cast<uint4*>(shared) + warp * STAGES * 4 * WARP + lane;
    float* sums = reinterpret_cast<float*>(reinterpret_cast<uint4*>(shared) + warps * STAGES * 4 * WARP);
    bf16* normed = reinterpret_cast<bf16*>(sums + warps * 8 * NT * 16);
    let_next_start();
    int first = int(blockIdx.x) * ROWS, slabs = ceil_div(a.k, SLAB), own = ceil_div(slabs - warp, warps);
    const bf16* rows[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + group + (GATED ? 0 : 8 * half);
        exists[half] = row < a.n;
        rows[half] = a.w + size_t(exists[half] ? row + (GATED ? half * a.n : 0) : 0) * a.k;
    }
    // Slab `i` of this warp begins at this value of k, in this thread.
    auto begin = [&](int i) { return (warp + i * warps) * SLAB + 8 * thread; };
    auto copy = [&](int i) {
        if (i < own) {
#pragma unroll
            for (int part = 0; part < 2; part++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int at = begin(i) + 32 * part;
                    bool valid = exists[half] && at < a.k;
                    copy_async(copies + ((i % STAGES) * 4 + 2 * part + half) * WARP, rows[half] + (valid ? at : 0), valid);
                }
        }
        copy_async_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES; i++) copy(i);
    wait_for_previous();
    if (NORM) normalize(a, normed);
    const bf16* inputs = NORM ? normed : static_cast<const bf16*>(a.x);
    size_t stride = size_t(NORM ? a.k : a.x_stride);
    auto load_inputs = [&](uint4 (&x)[2][NT], int i) {
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int n = 0; n < NT; n++) {
                int at = begin(i) + 32 * part, token = n * 8 + group;
                x[part][n] = zero_vector();
                if (i < own && at < a.k && token < a.tokens)
                    x[part][n] = *reinterpret_cast<const uint4*>(inputs + size_t(token) * stride + at);
            }
    };
    float c[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.f;
    uint4 x[2][NT], next[2][NT];
    load_inputs(next, 0);
#pragma unroll 1
    for (int i = 0; i < own; i++) {
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int n = 0; n < NT; n++) x[part][n] = next[part][n];
        load_inputs(next, i + 1);
        copy_async_wait<STAGES - 1>();
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const uint4* from = copies + ((i % STAGES) * 4 + 2 * part) * WARP;
            uint4 low = from[0], high = from[WARP];
            uint32_t one[4] = {low.x, high.x, low.y, high.y}, two[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mma_bf16(c[n], one, x[part][n].x, x[part][n].y);
                mma_bf16(c[n], two, x[part][n].z, x[part][n].w);
            }
        }
        copy(i + STAGES);
    }
    // Thread holds rows `group` and `group + 8` of tokens `2 thread` and `2 thread + 1`.
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = group + 8 * (e >> 1), token = n * 8 + 2 * thread + (e & 1);
            sums[(warp * 8 * NT + token) * 16 + row] = c[n][e];
        }
    __syncthreads();
    for (int at = int(threadIdx.x); at < ROWS * a.tokens; at += int(blockDim.x)) {
        int row = at % ROWS, token = at / ROWS;
        if (first + row >= a.n) continue;
        float result = 0.f, up = 0.f;
        for (int w = 0; w < warps; w++) {
            const float* from = sums + (w * 8 * NT + token) * 16 + row;
            result += from[0];
            if (GATED) up += from[8];
        }
        if (GATED) {
            float gate = to_float(from_float<bf16>(result));
            result = gate * sigmoid(gate) * to_float(from_float<bf16>(up));
        }
        size_t to = size_t(token) * a.y_stride + first + row;
        if (a.f32_output) {
            float* y = static_cast<float*>(a.y) + to;
            *y = a.accumulate ? *y + result : result;
        } else {
            bf16* y = static_cast<bf16*>(a.y) + to;
            *y = from_float<bf16>(a.accumulate ? to_float(*y) + result : result);
        }
    }
}
KERNEL __launch_bounds__(256) gemv_8(GemvArguments a) { gemv<1, false, false>(a); }
KERNEL __launch_bounds__(256) gemv_16(GemvArguments a) { gemv<2, false, false>(a); }
KERNEL __launch_bounds__(256) gemv_gated_8(GemvArguments a) { gemv<1, true, false>(a); }
KERNEL __launch_bounds__(256) gemv_gated_16(GemvArguments a) { gemv<2, true, false>(a); }
KERNEL __launch_bounds__(256) gemv_normed(GemvArguments a) { gemv<1, false, true>(a); }
KERNEL __launch_bounds__(256) gemv_gated_normed(GemvArguments a) { gemv<1, true, true>(a); }
