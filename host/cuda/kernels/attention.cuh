// What the attention kernels share: their arguments, tiles in shared memory, and products of tiles.
#pragma once
#include "common.cuh"

struct AttentionArguments {
    // Rows of packed tokens: queries, keys and values of one token next to each other.
    const void* qkv;
    int qkv_stride;
    // [packed tokens, heads, dim].
    void* out;
    // This layer's part of the first KV-cache block, [2, kv_heads, BLOCK_TOKENS, dim]; null without a cache.
    const void* kv;
    // Values from one block to the next.
    long long block_stride;
    // Packed row of the first query of every sequence; one more at the end.
    const int* starts;
    // Tokens of every sequence in the cache before its queries; null without a cache.
    const int* past;
    // Block table of every sequence.
    const int* tables;
    int table_stride;
    // One (sequence, query) per tile; the query counts from the first of the sequence. Blocks start in the order of the
    // tiles, those of all heads together: the tiles with the most work come first, so that all blocks end together.
    const int* tiles;
    // Null, or ln(sum(exp(score))) of every query, [heads, lse_stride].
    float* lse;
    int lse_stride;
    int heads, kv_heads, dim;
    // Scores are multiplied by this.
    float scale;
};

struct AttentionGradients {
    // dL/dout, [tokens, heads, dim].
    const void* dout;
    // Gradient of queries, keys and values, in the layout of `qkv`.
    void* dqkv;
    // Sum over the head's dimensions of out * dout, [heads, lse_stride].
    float* delta;
};

DEVICE int query_width(const AttentionArguments& a) { return a.heads * a.dim; }
DEVICE int key_width(const AttentionArguments& a) { return a.kv_heads * a.dim; }

// The key of a token of a sequence in the paged KV cache; its value is `kv_heads * BLOCK_TOKENS * dim` further.
template <class T> DEVICE const T* cached_key(const AttentionArguments& a, int sequence, int kv_head, int token) {
    int block = a.tables[size_t(sequence) * a.table_stride + token / BLOCK_TOKENS];
    return static_cast<const T*>(a.kv) + size_t(block) * size_t(a.block_stride) +
           (size_t(kv_head) * BLOCK_TOKENS + token % BLOCK_TOKENS) * a.dim;
}
// As above, among packed tokens; its value is `kv_heads * dim` further.
template <class T> DEVICE const T* packed_key(const AttentionArguments& a, int start, int kv_head, int token) {
    return static_cast<const T*>(a.qkv) + size_t(start + token) * a.qkv_stride + query_width(a) + size_t(kv_head) * a.dim;
}

// A tile in shared memory is [rows, D] of bf16 in chunks of 16 bytes. A chunk's place in its row depends on the row, so
// that the eight rows that one matrix load reads lie in different banks.
template <int D> DEVICE bf16* tile_chunk(bf16* tile, int row, int chunk) {
    return tile + row * D + ((chunk ^ (row & 7)) << 3);
}

// Loads a tile of `ROWS` rows with `THREADS` threads in the background. `row_at(i)` is the address of row `i`, of which
// the first `valid` exist; the others become zero.
template <int ROWS, int D, int THREADS, class RowAt> DEVICE void load_tile(bf16* tile, int valid, RowAt row_at) {
    constexpr int CHUNKS = D / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as much");
// More addresses at once than these would not fit the registers.
#pragma unroll 2
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int at = i * THREADS + int(threadIdx.x), row = at / CHUNKS, chunk = at % CHUNKS;
        bool exists = row < valid;
        copy_async(tile_chunk<D>(tile, row, chunk), row_at(exists ? row : 0) + chunk * 8, exists);
    }
}

// c [16 MI, 8 NT] += rows `first..` of `a` [.., D] times the transpose of the first 8 NT rows of `b` [.., D].
template <int MI, int NT, int D>
DEVICE void multiply_rows(float (&c)[MI][NT][4], bf16* a, int first, bf16* b) {
    int lane = lane_id();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[MI][4];
#pragma unroll
        for (int mi = 0; mi < MI; mi++)
            load_matrices(x[mi], tile_chunk<D>(a, first + mi * 16 + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t y[4];
            load_matrices(y, tile_chunk<D>(b, n * 8 + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
#pragma unroll
            for (int mi = 0; mi < MI; mi++) {
                mma_bf16(c[mi][n], x[mi], y[0], y[1]);
                mma_bf16(c[mi][n + 1], x[mi], y[2], y[3]);
            }
        }
    }
}

// c [16 MI, D] += p [16 MI, 16 KT] times the first 16 KT rows of `b` [.., D]; p is in registers.
template <int MI, int KT, int D>
DEVICE void multiply_columns(float (&c)[MI][D / 8][4], const uint32_t (&p)[MI][KT][4], bf16* b) {
    int lane = lane_id();
#pragma unroll
    for (int k = 0; k < KT; k++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t y[4];
            load_matrices_transposed(y, tile_chunk<D>(b, k * 16 + (lane & 15), 2 * n + (lane >> 4)));
#pragma unroll
            for (int mi = 0; mi < MI; mi++) {
                mma_bf16(c[mi][2 * n], p[mi][k], y[0], y[1]);
                mma_bf16(c[mi][2 * n + 1], p[mi][k], y[2], y[3]);
            }
        }
    }
}

// The result of one product as the left operand of the next.
template <int NT> DEVICE void pack_operand(uint32_t (&p)[NT / 2][4], const float (&c)[NT][4]) {
#pragma unroll
    for (int k = 0; k < NT / 2; k++) {
        p[k][0] = pack_bf16(c[2 * k][0], c[2 * k][1]);
        p[k][1] = pack_bf16(c[2 * k][2], c[2 * k][3]);
        p[k][2] = pack_bf16(c[2 * k + 1][0], c[2 * k + 1][1]);
        p[k][3] = pack_bf16(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
}

// The maximum and sum over the four lanes that hold a row of a product.
DEVICE float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}
DEVICE float quad_sum(float value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

template <int A, int B> DEVICE void clear(float (&c)[A][B][4]) {
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int j = 0; j < B; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0.f;
}
