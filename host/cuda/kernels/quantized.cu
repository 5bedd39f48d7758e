// Weights in 8 or 4 bits with a scale (and for 4 bits a minimum) for every 32 values of a row: products of few rows that
// restore them in registers, and a kernel that restores a whole weight for the products of many rows.
//
// A row is a sequence of units of 64 bytes, which are 128 values of 4 bits or 64 values of 8 bits. Thread `t` of four has
// bytes 16 t to 16 t + 15 of a unit: of each of its blocks of 32 values the values 8 t to 8 t + 7, which are those that it
// multiplies in `gemv.cu` too. `quantized.rs` makes this order from that of the blocks.
#include "common.cuh"

struct QuantizedWeight {
    // [n, units, 4]
    const uint4* quants;
    // [n, units, blocks of a unit] of half-precision numbers: a scale, and for 4 bits a minimum after it.
    const uint32_t* scales;
    int n, k, units;
};

struct QuantizedGemvArguments {
    QuantizedWeight w;
    const bf16* x;
    int x_stride;
    // bf16 or, with `residual`, the residual stream in f32, to which the product is added.
    void* y;
    int y_stride;
    int tokens;
    int residual;
};

// The value of the bits of a finite half-precision number; exact.
DEVICE float half_value(uint32_t bits) {
    // The exponents differ in their bias by 112.
    float magnitude = __uint_as_float((bits & 0x7fffu) << 13) * __uint_as_float(0x77800000u);
    return __uint_as_float(__float_as_uint(magnitude) | (bits & 0x8000u) << 16);
}

// 4 bits: bits 4 r of a word have value 2 r of a thread's eight, bits 16 + 4 r value 2 r + 1.
struct Int4 {
    static constexpr int BLOCKS = 4, WORDS = 1, SCALES = 4;
    static constexpr bool HAS_MINIMUM = true;
    // Adding 128 makes a value of 4 bits the low bits of a bf16.
    static constexpr float OFFSET = 128.f;
    DEVICE static float scale(const uint32_t* scales, int block) { return half_value(scales[block] & 0xffffu); }
    DEVICE static float minimum(const uint32_t* scales, int block) { return half_value(scales[block] >> 16); }
    // Pairs of values plus `OFFSET` as bf16.
    DEVICE static void pairs(uint32_t (&to)[4], const uint32_t* words) {
#pragma unroll
        for (int r = 0; r < 4; r++) to[r] = ((words[0] >> (4 * r)) & 0x000f000fu) | 0x43004300u;
    }
    DEVICE static float value(const uint32_t* words, int i) { return float((words[0] >> (4 * (i / 2) + 16 * (i % 2))) & 15u); }
};

// 8 bits: byte `i` of the words is value `i` of a thread's eight, plus 128.
struct Int8 {
    static constexpr int BLOCKS = 2, WORDS = 2, SCALES = 1;
    static constexpr bool HAS_MINIMUM = false;
    static constexpr float OFFSET = 0.f;
    DEVICE static float scale(const uint32_t* scales, int block) { return half_value((scales[0] >> (16 * block)) & 0xffffu); }
    DEVICE static float minimum(const uint32_t*, int) { return 0.f; }
    DEVICE static float value(const uint32_t* words, int i) {
        // The low bits of 2^23.
        uint32_t byte = (words[i / 4] >> (8 * (i % 4))) & 0xffu;
        return __uint_as_float(0x4b000000u | byte) - 8388736.f;
    }
    DEVICE static void pairs(uint32_t (&to)[4], const uint32_t* words) {
#pragma unroll
        for (int r = 0; r < 4; r++) to[r] = pack_bf16(value(words, 2 * r), value(words, 2 * r + 1));
    }
};

// NT tiles of 8 tokens. As `gemv`, but the values are multiplied as whole numbers, which bf16 has exactly, and the sums of
// each block are scaled; so only x is rounded. Of a minimum, and of the offset, the product is a multiple of the sum of x.
template <int NT, class Format> DEVICE void quantized_gemv(const QuantizedGemvArguments& a) {
    constexpr int UNIT = 32 * Format::BLOCKS, UNROLL = 2;
    // Partial sums [warps, 8 NT, 16].
    DYNAMIC_SHARED(shared);
    float* sums = reinterpret_cast<float*>(shared);
    let_next_start();
    wait_for_previous();
    int warps = int(blockDim.x >> 5), warp = warp_id(), lane = lane_id(), group = lane >> 2, thread = lane & 3;
    int first = int(blockIdx.x) * 16;
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    size_t rows[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + group + 8 * half;
        exists[half] = row < a.w.n;
        rows[half] = size_t(exists[half] ? row : 0) * a.w.units;
    }
    float c[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.f;
    for (int unit = warp * UNROLL; unit < a.w.units; unit += warps * UNROLL) {
        uint4 quants[UNROLL][2];
        uint32_t scales[UNROLL][2][Format::SCALES];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                bool valid = unit + u < a.w.units && exists[half];
                size_t at = rows[half] + unit + u;
                quants[u][half] = valid ? load_streaming(a.w.quants + at * 4 + thread) : zero_vector();
#pragma unroll
                for (int s = 0; s < Format::SCALES; s++) scales[u][half][s] = valid ? a.w.scales[at * Format::SCALES + s] : 0u;
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int block = 0; block < Format::BLOCKS; block++) {
                int at = (unit + u) * UNIT + 32 * block + 8 * thread;
                uint32_t low[4], high[4];
                const uint32_t words[2][4] = {{quants[u][0].x, quants[u][0].y, quants[u][0].z, quants[u][0].w},
                                              {quants[u][1].x, quants[u][1].y, quants[u][1].z, quants[u][1].w}};
                Format::pairs(low, words[0] + Format::WORDS * block);
                Format::pairs(high, words[1] + Format::WORDS * block);
                const uint32_t one[4] = {low[0], high[0], low[1], high[1]}, two[4] = {low[2], high[2], low[3], high[3]};
                float scale[2], rest[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    scale[half] = Format::scale(scales[u][half], block);
                    rest[half] = Format::minimum(scales[u][half], block) - Format::OFFSET * scale[half];
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    int token = n * 8 + group;
                    uint4 x = zero_vector();
                    if (at < a.w.k && token < a.tokens) x = *reinterpret_cast<const uint4*>(a.x + size_t(token) * a.x_stride + at);
                    float part[4] = {0.f, 0.f, 0.f, 0.f};
                    mma_bf16(part, one, x.x, x.y);
                    mma_bf16(part, two, x.z, x.w);
#pragma unroll
                    for (int e = 0; e < 4; e++) c[n][e] += scale[e >> 1] * part[e];
                    if (Format::HAS_MINIMUM) {
                        float sum[4] = {0.f, 0.f, 0.f, 0.f};
                        mma_bf16(sum, ones, x.x, x.y);
                        mma_bf16(sum, ones, x.z, x.w);
#pragma unroll
                        for (int e = 0; e < 4; e++) c[n][e] += rest[e >> 1] * sum[e];
                    }
                }
            }
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
    for (int at = int(threadIdx.x); at < 16 * a.tokens; at += int(blockDim.x)) {
        int row = at % 16, token = at / 16;
        if (first + row >= a.w.n) continue;
        float result = 0.f;
        for (int w = 0; w < warps; w++) result += sums[(w * 8 * NT + token) * 16 + row];
        size_t to = size_t(token) * a.y_stride + first + row;
        if (a.residual)
            static_cast<float*>(a.y)[to] += result;
        else
            static_cast<bf16*>(a.y)[to] = from_float<bf16>(result);
    }
}
KERNEL quantized_gemv_int4_8(QuantizedGemvArguments a) { quantized_gemv<1, Int4>(a); }
KERNEL quantized_gemv_int4_16(QuantizedGemvArguments a) { quantized_gemv<2, Int4>(a); }
KERNEL quantized_gemv_int8_8(QuantizedGemvArguments a) { quantized_gemv<1, Int8>(a); }
KERNEL quantized_gemv_int8_16(QuantizedGemvArguments a) { quantized_gemv<2, Int8>(a); }

// to [n, k] = w. A thread restores eight values.
template <class T, class Format> DEVICE void dequantize(const QuantizedWeight& w, T* to) {
    constexpr int UNIT = 32 * Format::BLOCKS;
    // Threads of a unit: four for each block.
    constexpr int THREADS = 4 * Format::BLOCKS;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)w.n * w.units * THREADS) return;
    int thread = int(i % THREADS) / Format::BLOCKS, block = int(i % Format::BLOCKS);
    long long unit = i / THREADS;
    int at = int(unit % w.units) * UNIT + 32 * block + 8 * thread;
    if (at >= w.k) return;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(w.quants) + i * Format::WORDS;
    const uint32_t* scales = w.scales + unit * Format::SCALES;
    float scale = Format::scale(scales, block), minimum = Format::minimum(scales, block);
    Pack<T> packs[8 / Pack<T>::N];
#pragma unroll
    for (int j = 0; j < 8; j++) packs[j / Pack<T>::N].v[j % Pack<T>::N] = from_float<T>(scale * Format::value(words, j) + minimum);
    T* row = to + (unit / w.units) * w.k + at;
#pragma unroll
    for (int j = 0; j < 8 / Pack<T>::N; j++) store_pack(row + j * Pack<T>::N, packs[j]);
}
KERNEL dequantize_int4_f32(QuantizedWeight w, float* to) { dequantize<float, Int4>(w, to); }
KERNEL dequantize_int4_bf16(QuantizedWeight w, bf16* to) { dequantize<bf16, Int4>(w, to); }
KERNEL dequantize_int8_f32(QuantizedWeight w, float* to) { dequantize<float, Int8>(w, to); }
KERNEL dequantize_int8_bf16(QuantizedWeight w, bf16* to) { dequantize<bf16, Int8>(w, to); }
