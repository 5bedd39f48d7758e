// Products of few rows with a weight matrix, y [tokens, n] = x [tokens, k] w [n, k]^T, bound by reading the weights once.
//
// The weights are the left operand of the tensor cores: 16 rows of `w` times 8 or 16 tokens. Each thread loads 16 bytes
// of consecutive weights straight into its registers. The order of k inside a product may be any as long as both
// operands have the same, so no value changes its thread and shared memory holds only the partial sums of the warps,
// which share k. A norm before the product needs no kernel of its own: the gain multiplies x as it is loaded, and the
// inverse root mean square multiplies the result.
#include "common.cuh"

struct GemvArguments {
    // [n, k]; with a gated activation [2 n, k], gate rows first. k is a multiple of 8.
    const bf16* w;
    const bf16* x;
    int x_stride;
    // bf16 or, with `f32_output`, f32.
    void* y;
    int y_stride;
    int n, k, tokens;
    // Null, or the gain of the norm of x.
    const float* gain;
    float eps;
    // Null, or [n]; not with a gated activation.
    const float* bias;
    // Adds to y.
    int accumulate;
    int f32_output;
};

// NT tiles of 8 tokens. GATED: y = silu(w_gate x) * (w_up x).
template <int NT, bool GATED> DEVICE void gemv(const GemvArguments& a) {
    constexpr int PARTS = GATED ? 2 : 1, UNROLL = GATED ? 2 : 4;
    // Partial sums [warps, PARTS, 16, 8 NT], then the sums of squares [warps, 8 NT].
    DYNAMIC_SHARED(shared);
    int warps = int(blockDim.x >> 5), warp = warp_id(), lane = lane_id(), group = lane >> 2, thread = lane & 3;
    float* sums = reinterpret_cast<float*>(shared);
    float* squares = sums + warps * PARTS * 16 * 8 * NT;
    int first = int(blockIdx.x) * 16, slabs = ceil_div(a.k, 32);
    const bf16* rows[PARTS][2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + group + 8 * half;
        exists[half] = row < a.n;
#pragma unroll
        for (int part = 0; part < PARTS; part++) rows[part][half] = a.w + size_t(exists[half] ? row + part * a.n : 0) * a.k;
    }
    float c[PARTS][NT][4], square[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        square[n] = 0.f;
#pragma unroll
        for (int part = 0; part < PARTS; part++) c[part][n][0] = c[part][n][1] = c[part][n][2] = c[part][n][3] = 0.f;
    }
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
                if (at < a.k && token < a.tokens) x[u][n] = *reinterpret_cast<const uint4*>(a.x + size_t(token) * a.x_stride + at);
            }
            if (a.gain && at < a.k) {
                float4 low = *reinterpret_cast<const float4*>(a.gain + at), high = *reinterpret_cast<const float4*>(a.gain + at + 4);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    uint4& v = x[u][n];
                    square[n] += low_half(v.x) * low_half(v.x) + high_half(v.x) * high_half(v.x) + low_half(v.y) * low_half(v.y) +
                                 high_half(v.y) * high_half(v.y) + low_half(v.z) * low_half(v.z) + high_half(v.z) * high_half(v.z) +
                                 low_half(v.w) * low_half(v.w) + high_half(v.w) * high_half(v.w);
                    v.x = pack_bf16(low_half(v.x) * low.x, high_half(v.x) * low.y);
                    v.y = pack_bf16(low_half(v.y) * low.z, high_half(v.y) * low.w);
                    v.z = pack_bf16(low_half(v.z) * high.x, high_half(v.z) * high.y);
                    v.w = pack_bf16(low_half(v.w) * high.z, high_half(v.w) * high.w);
                }
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
    if (a.gain) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float sum = square[n];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            if (thread == 0) squares[warp * 8 * NT + n * 8 + group] = sum;
        }
    }
    __syncthreads();
    for (int at = int(threadIdx.x); at < 16 * a.tokens; at += int(blockDim.x)) {
        int row = at % 16, token = at / 16;
        if (first + row >= a.n) continue;
        float value[PARTS], scale = 1.f;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            value[part] = 0.f;
            for (int w = 0; w < warps; w++) value[part] += sums[((w * PARTS + part) * 8 * NT + token) * 16 + row];
        }
        if (a.gain) {
            float sum = 0.f;
            for (int w = 0; w < warps; w++) sum += squares[w * 8 * NT + token];
            scale = rsqrtf(sum / float(a.k) + a.eps);
        }
        float result = value[0] * scale;
        if (GATED) result = result / (1.f + __expf(-result)) * (value[PARTS - 1] * scale);
        if (a.bias) result += a.bias[first + row];
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
KERNEL gemv_8(GemvArguments a) { gemv<1, false>(a); }
KERNEL gemv_16(GemvArguments a) { gemv<2, false>(a); }
KERNEL gemv_gated_8(GemvArguments a) { gemv<1, true>(a); }
KERNEL gemv_gated_16(GemvArguments a) { gemv<2, true>(a); }
