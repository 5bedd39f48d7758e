// Products of few rows with a weight matrix, y [tokens, n] = x [tokens, k] w [n, k]^T, bound by reading the weights once.
//
// The weights are the left operand of the tensor cores: 16 rows of `w` times 8 or 16 tokens. Each thread loads 16 bytes
// of consecutive weights straight into its registers. The order of k inside a product may be any as long as both
// operands have the same, so no value changes its thread and shared memory holds only the partial sums of the warps,
// which share k. A norm of one or two rows before the product needs no kernel of its own: every block computes it.
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

// NT tiles of 8 tokens. GATED: y = silu(w_gate x) * (w_up x). NORM: of x. Values round where separate kernels round.
template <int NT, bool GATED, bool NORM> DEVICE void gemv(const GemvArguments& a) {
    constexpr int PARTS = GATED ? 2 : 1, UNROLL = GATED ? 2 : 4;
    // Partial sums [warps, PARTS, 16, 8 NT], then with a norm the normalized rows [tokens, k].
    DYNAMIC_SHARED(shared);
    int warps = int(blockDim.x >> 5), warp = warp_id(), lane = lane_id(), group = lane >> 2, thread = lane & 3;
    float* sums = reinterpret_cast<float*>(shared);
    bf16* normed = reinterpret_cast<bf16*>(sums + warps * PARTS * 16 * 8 * NT);
    int first = int(blockIdx.x) * 16, slabs = ceil_div(a.k, 32);
    if (NORM) {
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
    const bf16* inputs = NORM ? normed : static_cast<const bf16*>(a.x);
    size_t stride = size_t(NORM ? a.k : a.x_stride);
    const bf16* rows[PARTS][2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + group + 8 * half;
        exists[half] = row < a.n;
#pragma unroll
        for (int part = 0; part < PARTS; part++) rows[part][half] = a.w + size_t(exists[half] ? row + part * a.n : 0) * a.k;
    }
    float c[PARTS][NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int part = 0; part < PARTS; part++) c[part][n][0] = c[part][n][1] = c[part][n][2] = c[part][n][3] = 0.f;
    for (int slab = warp * UNROLL; slab < slabs; slab += warps * UNROLL) {
        uint4 w[UNROLL][PARTS][2], x[UNROLL][NT];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = (slab + u) * 32 + 8 * thread;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    w[u][part][half] = zero_vector();
                    if (at < a.k && exists[half]) w[u][part][half] = load_streaming(rows[part][half] + at);
                }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = (slab + u) * 32 + 8 * thread;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                int token = n * 8 + group;
                x[u][n] = zero_vector();
                if (at < a.k && token < a.tokens) x[u][n] = *reinterpret_cast<const uint4*>(inputs + size_t(token) * stride + at);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                uint4 low = w[u][part][0], high = w[u][part][1];
                uint32_t one[4] = {low.x, high.x, low.y, high.y}, two[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mma_bf16(c[part][n], one, x[u][n].x, x[u][n].y);
                    mma_bf16(c[part][n], two, x[u][n].z, x[u][n].w);
                }
            }
    }
    // Thread holds rows `group` and `group + 8` of tokens `2 thread` and `2 thread + 1`.
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = group + 8 * (e >> 1), token = n * 8 + 2 * thread + (e & 1);
                sums[((warp * PARTS + part) * 8 * NT + token) * 16 + row] = c[part][n][e];
            }
    __syncthreads();
    for (int at = int(threadIdx.x); at < 16 * a.tokens; at += int(blockDim.x)) {
        int row = at % 16, token = at / 16;
        if (first + row >= a.n) continue;
        float value[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            value[part] = 0.f;
            for (int w = 0; w < warps; w++) value[part] += sums[((w * PARTS + part) * 8 * NT + token) * 16 + row];
        }
        float result = value[0];
        if (GATED) {
            float gate = to_float(from_float<bf16>(result)), up = to_float(from_float<bf16>(value[PARTS - 1]));
            result = gate * sigmoid(gate) * up;
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
KERNEL gemv_8(GemvArguments a) { gemv<1, false, false>(a); }
KERNEL gemv_16(GemvArguments a) { gemv<2, false, false>(a); }
KERNEL gemv_gated_8(GemvArguments a) { gemv<1, true, false>(a); }
KERNEL gemv_gated_16(GemvArguments a) { gemv<2, true, false>(a); }
KERNEL gemv_normed(GemvArguments a) { gemv<1, false, true>(a); }
KERNEL gemv_gated_normed(GemvArguments a) { gemv<1, true, true>(a); }
