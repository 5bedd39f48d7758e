// The gradient of causal attention over packed sequences in bf16 on tensor cores. Two kernels, one over tiles of keys
// and one over tiles of queries, recompute the probabilities: that costs two products more than one kernel that adds to
// the queries' gradient from several blocks, but the result does not depend on timing.
#include "attention.cuh"

// One warp per head of a token.
template <class T> DEVICE void attention_delta(const AttentionArguments& a, const AttentionGradients& g) {
    int head = int(blockIdx.x) * int(blockDim.x >> 5) + warp_id(), token = int(blockIdx.y);
    if (head >= a.heads) return;
    size_t at = (size_t(token) * a.heads + head) * a.dim;
    float sum = 0.f;
    for (int i = lane_id(); i < a.dim; i += WARP)
        sum += to_float(static_cast<const T*>(a.out)[at + i]) * to_float(static_cast<const T*>(g.dout)[at + i]);
    sum = warp_sum(sum);
    if (lane_id() == 0) g.delta[size_t(head) * a.lse_stride + token] = sum;
}
KERNEL attention_delta_f32(AttentionArguments a, AttentionGradients g) { attention_delta<float>(a, g); }
KERNEL attention_delta_bf16(AttentionArguments a, AttentionGradients g) { attention_delta<bf16>(a, g); }

// Gradients of 64 keys and their values (tile blockIdx.y) of a key head (blockIdx.x). Each of 4 warps has 16 keys; the
// queries of all its heads pass through shared memory.
template <int D> DEVICE void attention_dkdv(const AttentionArguments& a, const AttentionGradients& g) {
    constexpr int KEYS = 64, QUERIES = 64, THREADS = 128, NT = QUERIES / 8;
    DYNAMIC_SHARED(shared);
    bf16* k_tile = reinterpret_cast<bf16*>(shared);
    bf16* v_tile = k_tile + KEYS * D;
    bf16* q_tiles = v_tile + KEYS * D;
    bf16* d_tiles = q_tiles + 2 * QUERIES * D;
    float* statistics = reinterpret_cast<float*>(d_tiles + 2 * QUERIES * D);
    int sequence = a.tiles[2 * blockIdx.y], first = a.tiles[2 * blockIdx.y + 1], kv_head = int(blockIdx.x);
    int start = a.starts[sequence], length = a.starts[sequence + 1] - start, keys = min(KEYS, length - first);
    int count = a.heads / a.kv_heads;
    // Queries before the first key do not see it.
    int first_tile = first / QUERIES, tiles = ceil_div(length, QUERIES) - first_tile, steps = tiles * count;

    load_tile<KEYS, D, THREADS>(k_tile, keys, [&](int row) { return packed_key<bf16>(a, start, kv_head, first + row); });
    load_tile<KEYS, D, THREADS>(v_tile, keys, [&](int row) {
        return packed_key<bf16>(a, start, kv_head, first + row) + size_t(a.kv_heads) * D;
    });
    auto load_queries = [&](int step) {
        int head = kv_head * count + step / tiles, from = (first_tile + step % tiles) * QUERIES, stage = step & 1;
        const bf16* queries = static_cast<const bf16*>(a.qkv) + size_t(start + from) * a.qkv_stride + head * D;
        const bf16* gradients = static_cast<const bf16*>(g.dout) + size_t(start + from) * query_width(a) + head * D;
        load_tile<QUERIES, D, THREADS>(q_tiles + stage * QUERIES * D, length - from,
                                       [&](int row) { return queries + size_t(row) * a.qkv_stride; });
        load_tile<QUERIES, D, THREADS>(d_tiles + stage * QUERIES * D, length - from,
                                       [&](int row) { return gradients + size_t(row) * query_width(a); });
        copy_async_commit();
        // Nobody reads this stage until the barrier of its own step. A query that does not exist has weight 0.
        int query = int(threadIdx.x) % QUERIES;
        size_t at = size_t(head) * a.lse_stride + start + from + query;
        bool is_lse = threadIdx.x < QUERIES;
        float value = is_lse ? POSITIVE_INFINITY : 0.f;
        if (from + query < length) value = is_lse ? a.lse[at] * LOG2_E : g.delta[at];
        statistics[(2 * stage + (is_lse ? 0 : 1)) * QUERIES + query] = value;
    };

    int lane = lane_id(), group = lane >> 2, thread = lane & 3, warp_row = warp_id() * 16;
    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk);
    clear(dv);
    float scale = a.scale * LOG2_E;
    load_queries(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            load_queries(step + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        int from = (first_tile + step % tiles) * QUERIES, stage = step & 1;
        bf16 *q_tile = q_tiles + stage * QUERIES * D, *d_tile = d_tiles + stage * QUERIES * D;
        const float *lse = statistics + 2 * stage * QUERIES, *delta = lse + QUERIES;
        // [keys, queries]
        float weights[1][NT][4], slopes[1][NT][4];
        clear(weights);
        multiply_rows<1, NT, D>(weights, k_tile, warp_row, q_tile);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int query = n * 8 + 2 * thread + (e & 1), key = first + warp_row + group + 8 * (e >> 1);
                float weight = exp2f(weights[0][n][e] * scale - lse[query]);
                weights[0][n][e] = key <= from + query ? weight : 0.f;
            }
        uint32_t operand[1][NT / 2][4];
        pack_operand<NT>(operand[0], weights[0]);
        multiply_columns<1, NT / 2, D>(dv, operand, d_tile);
        clear(slopes);
        multiply_rows<1, NT, D>(slopes, v_tile, warp_row, d_tile);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                slopes[0][n][e] = weights[0][n][e] * (slopes[0][n][e] - delta[n * 8 + 2 * thread + (e & 1)]);
        pack_operand<NT>(operand[0], slopes[0]);
        multiply_columns<1, NT / 2, D>(dk, operand, q_tile);
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = warp_row + group + 8 * half;
        if (row >= keys) continue;
        bf16* to = static_cast<bf16*>(g.dqkv) + size_t(start + first + row) * a.qkv_stride + query_width(a) + kv_head * D;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            int column = n * 8 + 2 * thread;
            *reinterpret_cast<uint32_t*>(to + column) = pack_bf16(dk[0][n][2 * half] * a.scale, dk[0][n][2 * half + 1] * a.scale);
            *reinterpret_cast<uint32_t*>(to + key_width(a) + column) = pack_bf16(dv[0][n][2 * half], dv[0][n][2 * half + 1]);
        }
    }
}
KERNEL __launch_bounds__(128) attention_dkdv_64(AttentionArguments a, AttentionGradients g) { attention_dkdv<64>(a, g); }
KERNEL __launch_bounds__(128) attention_dkdv_128(AttentionArguments a, AttentionGradients g) { attention_dkdv<128>(a, g); }

// Gradients of 64 queries (tile blockIdx.y) of a head (blockIdx.x). Each of 4 warps has 16 queries; the keys and values
// pass through shared memory.
template <int D> DEVICE void attention_dq(const AttentionArguments& a, const AttentionGradients& g) {
    constexpr int KEYS = 64, QUERIES = 64, THREADS = 128, NT = KEYS / 8;
    DYNAMIC_SHARED(shared);
    bf16* q_tile = reinterpret_cast<bf16*>(shared);
    bf16* d_tile = q_tile + QUERIES * D;
    bf16* k_tiles = d_tile + QUERIES * D;
    bf16* v_tiles = k_tiles + 2 * KEYS * D;
    int sequence = a.tiles[2 * blockIdx.y], first = a.tiles[2 * blockIdx.y + 1], head = int(blockIdx.x);
    int kv_head = head * a.kv_heads / a.heads;
    int start = a.starts[sequence], length = a.starts[sequence + 1] - start, rows = min(QUERIES, length - first);
    int visible = first + rows, tiles = ceil_div(visible, KEYS);

    const bf16* queries = static_cast<const bf16*>(a.qkv) + size_t(start + first) * a.qkv_stride + head * D;
    const bf16* gradients = static_cast<const bf16*>(g.dout) + size_t(start + first) * query_width(a) + head * D;
    load_tile<QUERIES, D, THREADS>(q_tile, rows, [&](int row) { return queries + size_t(row) * a.qkv_stride; });
    load_tile<QUERIES, D, THREADS>(d_tile, rows, [&](int row) { return gradients + size_t(row) * query_width(a); });
    auto load_keys = [&](int tile) {
        int from = tile * KEYS, stage = (tile & 1) * KEYS * D;
        auto key = [&](int row) { return packed_key<bf16>(a, start, kv_head, from + row); };
        load_tile<KEYS, D, THREADS>(k_tiles + stage, visible - from, key);
        load_tile<KEYS, D, THREADS>(v_tiles + stage, visible - from, [&](int row) { return key(row) + size_t(a.kv_heads) * D; });
        copy_async_commit();
    };

    int lane = lane_id(), group = lane >> 2, thread = lane & 3, warp_row = warp_id() * 16;
    float lse[2], delta[2], dq[1][D / 8][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = warp_row + group + 8 * half;
        size_t at = size_t(head) * a.lse_stride + start + first + row;
        lse[half] = row < rows ? a.lse[at] * LOG2_E : POSITIVE_INFINITY;
        delta[half] = row < rows ? g.delta[at] : 0.f;
    }
    clear(dq);
    float scale = a.scale * LOG2_E;
    load_keys(0);
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            load_keys(tile + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        bf16 *k_tile = k_tiles + (tile & 1) * KEYS * D, *v_tile = v_tiles + (tile & 1) * KEYS * D;
        float weights[1][NT][4], slopes[1][NT][4];
        clear(weights);
        clear(slopes);
        multiply_rows<1, NT, D>(weights, q_tile, warp_row, k_tile);
        multiply_rows<1, NT, D>(slopes, d_tile, warp_row, v_tile);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = tile * KEYS + n * 8 + 2 * thread + (e & 1), query = first + warp_row + group + 8 * (e >> 1);
                float weight = key <= query ? exp2f(weights[0][n][e] * scale - lse[e >> 1]) : 0.f;
                slopes[0][n][e] = weight * (slopes[0][n][e] - delta[e >> 1]);
            }
        uint32_t operand[1][NT / 2][4];
        pack_operand<NT>(operand[0], slopes[0]);
        multiply_columns<1, NT / 2, D>(dq, operand, k_tile);
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = warp_row + group + 8 * half;
        if (row >= rows) continue;
        bf16* to = static_cast<bf16*>(g.dqkv) + size_t(start + first + row) * a.qkv_stride + head * D;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<uint32_t*>(to + n * 8 + 2 * thread) =
                pack_bf16(dq[0][n][2 * half] * a.scale, dq[0][n][2 * half + 1] * a.scale);
    }
}
KERNEL __launch_bounds__(128) attention_dq_64(AttentionArguments a, AttentionGradients g) { attention_dq<64>(a, g); }
KERNEL __launch_bounds__(128) attention_dq_128(AttentionArguments a, AttentionGradients g) { attention_dq<128>(a, g); }
