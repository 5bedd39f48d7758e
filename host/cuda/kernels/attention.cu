// Causal attention in bf16 on tensor cores, forward: a kernel for many queries of a sequence (FlashAttention-2, Dao
// 2023) and one for a single query of each sequence, which splits the context. Grouped query heads share key heads.
// Head dimensions 64 and 128; `attention_general.cu` has all others.
//
// Weights are powers of two, exp2(score - largest), where `largest` is rounded up to a whole number: however a kernel divides
// the keys, a weight differs by a power of two, so that it rounds to bf16 alike in all of them.
#include "attention.cuh"

// One block per tile of 128 queries (blockIdx.y) and head (blockIdx.x): 4 warps of 32 queries each. Keys and values pass
// through shared memory in tiles of 64, of which two are there: one is used while the next one is loaded.
template <int D, bool PAGED> DEVICE void attention_prefill(const AttentionArguments& a) {
    constexpr int ROWS = 128, KEYS = 64, THREADS = 128, MI = 2, NT = KEYS / 8;
    DYNAMIC_SHARED(shared);
    bf16* q_tile = reinterpret_cast<bf16*>(shared);
    bf16* k_tiles = q_tile + ROWS * D;
    bf16* v_tiles = k_tiles + 2 * KEYS * D;
    int sequence = a.tiles[2 * blockIdx.y], first = a.tiles[2 * blockIdx.y + 1], head = int(blockIdx.x);
    int kv_head = head * a.kv_heads / a.heads;
    int start = a.starts[sequence], length = a.starts[sequence + 1] - start;
    int past = PAGED ? a.past[sequence] : 0, rows = min(ROWS, length - first), visible = past + first + rows;

    const bf16* queries = static_cast<const bf16*>(a.qkv) + size_t(start + first) * a.qkv_stride + head * D;
    load_tile<ROWS, D, THREADS>(q_tile, rows, [&](int row) { return queries + size_t(row) * a.qkv_stride; });
    size_t to_value = PAGED ? size_t(a.kv_heads) * BLOCK_TOKENS * D : size_t(a.kv_heads) * D;
    auto load_keys = [&](int tile) {
        int from = tile * KEYS, stage = (tile & 1) * KEYS * D;
        auto key = [&](int row) {
            return PAGED ? cached_key<bf16>(a, sequence, kv_head, from + row) : packed_key<bf16>(a, start, kv_head, from + row);
        };
        load_tile<KEYS, D, THREADS>(k_tiles + stage, visible - from, key);
        load_tile<KEYS, D, THREADS>(v_tiles + stage, visible - from, [&](int row) { return key(row) + to_value; });
        copy_async_commit();
    };

    int lane = lane_id(), group = lane >> 2, thread = lane & 3, warp_row = warp_id() * 32;
    float output[MI][D / 8][4], largest[MI][2], sum[MI][2];
    clear(output);
#pragma unroll
    for (int mi = 0; mi < MI; mi++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            largest[mi][half] = NEGATIVE_INFINITY;
            sum[mi][half] = 0.f;
        }
    float scale = a.scale * LOG2_E;
    int tiles = ceil_div(visible, KEYS);
    load_keys(0);
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            load_keys(tile + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        float scores[MI][NT][4];
        clear(scores);
        multiply_rows<MI, NT, D>(scores, q_tile, warp_row, k_tiles + (tile & 1) * KEYS * D);
        // Queries see keys up to their own position.
        int from = tile * KEYS, own = past + first + warp_row;
        if (from + KEYS > own + 1) {
#pragma unroll
            for (int mi = 0; mi < MI; mi++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int key = from + n * 8 + 2 * thread + (e & 1), query = own + mi * 16 + group + 8 * (e >> 1);
                        if (key > query) scores[mi][n][e] = NEGATIVE_INFINITY;
                    }
        }
        uint32_t weights[MI][NT / 2][4];
#pragma unroll
        for (int mi = 0; mi < MI; mi++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float top = NEGATIVE_INFINITY;
#pragma unroll
                for (int n = 0; n < NT; n++) top = fmaxf(top, fmaxf(scores[mi][n][2 * half], scores[mi][n][2 * half + 1]));
                // The first tile has a key for every query, so `top` is finite unless a score is not.
                top = fmaxf(largest[mi][half], ceilf(quad_max(top) * scale));
                float correction = exp2f(largest[mi][half] - top), own_sum = 0.f;
                largest[mi][half] = top;
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        scores[mi][n][e] = exp2f(scores[mi][n][e] * scale - top);
                        own_sum += scores[mi][n][e];
                    }
                sum[mi][half] = sum[mi][half] * correction + own_sum;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    output[mi][n][2 * half] *= correction;
                    output[mi][n][2 * half + 1] *= correction;
                }
            }
            pack_operand<NT>(weights[mi], scores[mi]);
        }
        multiply_columns<MI, NT / 2, D>(output, weights, v_tiles + (tile & 1) * KEYS * D);
        __syncthreads();
    }
#pragma unroll
    for (int mi = 0; mi < MI; mi++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = warp_row + mi * 16 + group + 8 * half;
            float total = quad_sum(sum[mi][half]), inverse = 1.f / total;
            if (row >= rows) continue;
            bf16* to = static_cast<bf16*>(a.out) + size_t(start + first + row) * query_width(a) + head * D;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *reinterpret_cast<uint32_t*>(to + n * 8 + 2 * thread) =
                    pack_bf16(output[mi][n][2 * half] * inverse, output[mi][n][2 * half + 1] * inverse);
            if (a.lse && thread == 0)
                a.lse[size_t(head) * a.lse_stride + start + first + row] = largest[mi][half] / LOG2_E + logf(total);
        }
}
KERNEL __launch_bounds__(128) attention_prefill_paged_64(AttentionArguments a) { attention_prefill<64, true>(a); }
KERNEL __launch_bounds__(128) attention_prefill_paged_128(AttentionArguments a) { attention_prefill<128, true>(a); }
KERNEL __launch_bounds__(128) attention_prefill_packed_64(AttentionArguments a) { attention_prefill<64, false>(a); }
KERNEL __launch_bounds__(128) attention_prefill_packed_128(AttentionArguments a) { attention_prefill<128, false>(a); }

// Workspace of `attention_decode`: partial results of every split, and how many splits of a row have finished.
struct DecodeWorkspace {
    // [tiles, heads, splits, D], not yet divided by the sum.
    float* outputs;
    // [tiles, heads, splits, 2]: largest score as a power of two, sum.
    float* sums;
    // [tiles, kv_heads], zero before and after the kernel.
    unsigned* finished;
};

// One query of a sequence, already in the cache. Grid (kv_heads, tiles, splits), 8 warps, each of which takes steps of 16
// keys. The query heads of a key head are the rows of the products (at most 16), so every key is read once. A block has at
// least two steps per warp: a context of up to 256 tokens is not split, and nothing is merged through memory.
//
// Keys and values go from memory to the registers in which the tensor cores want them, 16 bytes per load and without
// shared memory: the order of the dimensions in `q k`, and of the columns in `p v`, may be any, so each thread takes the
// eight values that it loads. The keys of the next step are loaded as soon as those of this one are used, and likewise
// the values.
template <int D> DEVICE void attention_decode(const AttentionArguments& a, const DecodeWorkspace& workspace) {
    constexpr int WARPS = 8, STEP = 16, SLABS = D / 32, HALVES = D / 64;
    // [WARPS, count, D].
    DYNAMIC_SHARED(shared);
    __shared__ float tops[WARPS][16], sums[WARPS][16];
    __shared__ int is_last;
    float* outputs = reinterpret_cast<float*>(shared);
    let_next_start();
    wait_for_previous();
    int kv_head = int(blockIdx.x), tile = int(blockIdx.y), split = int(blockIdx.z), sequence = a.tiles[2 * tile];
    int row = a.starts[sequence], length = a.past[sequence] + 1, count = a.heads / a.kv_heads;
    int steps = ceil_div(length, STEP), per_split = max(2 * WARPS, ceil_div(steps, int(gridDim.z)));
    int splits = ceil_div(steps, per_split);
    if (split >= splits) return;
    int lane = lane_id(), group = lane >> 2, thread = lane & 3, warp = warp_id();

    int step = split * per_split + warp, last = min(steps, (split + 1) * per_split);
    size_t to_value = size_t(a.kv_heads) * BLOCK_TOKENS * D;
    uint4 k[2][SLABS], v[4][HALVES];
    auto load_keys = [&](const bf16* key) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < SLABS; s++) k[i][s] = load_streaming(key + (8 * i + group) * D + 32 * s + 8 * thread);
    };
    auto load_tokens = [&](const bf16* value, int from) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int token = 2 * thread + (i & 1) + 8 * (i >> 1);
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                // A block may hold anything after the last token, also what is not a number.
                v[i][h] = zero_vector();
                if (from + token < length) v[i][h] = load_streaming(value + token * D + 64 * h + 8 * group);
            }
        }
    };
    if (step < last) {
        const bf16* key = cached_key<bf16>(a, sequence, kv_head, step * STEP);
        load_keys(key);
        load_tokens(key + to_value, step * STEP);
    }
    const bf16* queries = static_cast<const bf16*>(a.qkv) + size_t(row) * a.qkv_stride + size_t(kv_head) * count * D;
    uint32_t q[2 * SLABS][4];
#pragma unroll
    for (int s = 0; s < SLABS; s++) {
        uint4 low = zero_vector(), high = zero_vector();
        if (group < count) low = *reinterpret_cast<const uint4*>(queries + group * D + 32 * s + 8 * thread);
        if (group + 8 < count) high = *reinterpret_cast<const uint4*>(queries + (group + 8) * D + 32 * s + 8 * thread);
        q[2 * s][0] = low.x, q[2 * s][1] = high.x, q[2 * s][2] = low.y, q[2 * s][3] = high.y;
        q[2 * s + 1][0] = low.z, q[2 * s + 1][1] = high.z, q[2 * s + 1][2] = low.w, q[2 * s + 1][3] = high.w;
    }
    float output[1][D / 8][4], largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, sum[2] = {0.f, 0.f};
    clear(output);
    float scale = a.scale * LOG2_E;
#pragma unroll 1
    for (; step < last; step += WARPS) {
        int from = step * STEP, next = step + WARPS;
        const bf16* next_key = next < last ? cached_key<bf16>(a, sequence, kv_head, next * STEP) : nullptr;
        float scores[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0.f;
#pragma unroll
            for (int s = 0; s < SLABS; s++) {
                mma_bf16(scores[i], q[2 * s], k[i][s].x, k[i][s].y);
                mma_bf16(scores[i], q[2 * s + 1], k[i][s].z, k[i][s].w);
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (from + 8 * i + 2 * thread + (e & 1) >= length) scores[i][e] = NEGATIVE_INFINITY;
        }
        if (next_key) load_keys(next_key);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = fmaxf(fmaxf(scores[0][2 * half], scores[0][2 * half + 1]), fmaxf(scores[1][2 * half], scores[1][2 * half + 1]));
            top = fmaxf(ceilf(quad_max(top) * scale), largest[half]);
            float correction = exp2f(largest[half] - top);
            largest[half] = top;
            sum[half] *= correction;
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[i][e] = exp2f(scores[i][e] * scale - top);
                    sum[half] += scores[i][e];
                }
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                output[0][n][2 * half] *= correction;
                output[0][n][2 * half + 1] *= correction;
            }
        }
        uint32_t p[4] = {pack_bf16(scores[0][0], scores[0][1]), pack_bf16(scores[0][2], scores[0][3]),
                         pack_bf16(scores[1][0], scores[1][1]), pack_bf16(scores[1][2], scores[1][3])};
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint32_t words[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                words[i][0] = v[i][h].x, words[i][1] = v[i][h].y, words[i][2] = v[i][h].z, words[i][3] = v[i][h].w;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                unsigned selector = j & 1 ? 0x7632 : 0x5410;
                mma_bf16(output[0][8 * h + j], p, __byte_perm(words[0][j / 2], words[1][j / 2], selector),
                         __byte_perm(words[2][j / 2], words[3][j / 2], selector));
            }
        }
        if (next_key) load_tokens(next_key + to_value, next * STEP);
    }
    // Merge the warps.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = quad_sum(sum[half]);
        int head = group + 8 * half;
        if (head >= count) continue;
        if (thread == 0) {
            tops[warp][head] = largest[half];
            sums[warp][head] = total;
        }
        float* to = outputs + (warp * count + head) * D;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int j = 0; j < 8; j += 4) {
                    Pack<float> pack;
#pragma unroll
                    for (int i = 0; i < 4; i++) pack.v[i] = output[0][8 * h + j + i][2 * half + e];
                    store_pack(to + 64 * h + 8 * (2 * thread + e) + j, pack);
                }
    }
    __syncthreads();
    bf16* to = static_cast<bf16*>(a.out) + size_t(row) * query_width(a) + size_t(kv_head) * count * D;
    size_t first_head = size_t(tile) * a.heads + size_t(kv_head) * count;
    for (int at = int(threadIdx.x); at < count * D; at += int(blockDim.x)) {
        int head = at / D, column = at % D;
        float top = NEGATIVE_INFINITY, value = 0.f, total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][head]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float weight = sums[w][head] == 0.f ? 0.f : exp2f(tops[w][head] - top);
            value += weight * outputs[(w * count + head) * D + column];
            total += weight * sums[w][head];
        }
        if (splits == 1) {
            to[at] = from_float<bf16>(value / total);
        } else {
            size_t partial = (first_head + head) * gridDim.z + split;
            workspace.outputs[partial * D + column] = value;
            if (column == 0) {
                workspace.sums[2 * partial] = top;
                workspace.sums[2 * partial + 1] = total;
            }
        }
    }
    if (splits == 1) return;
    // The last split to finish merges all.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned* finished = workspace.finished + size_t(tile) * a.kv_heads + kv_head;
        is_last = atomicAdd(finished, 1u) == unsigned(splits - 1);
        if (is_last) *finished = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int at = int(threadIdx.x); at < count * D; at += int(blockDim.x)) {
        int head = at / D, column = at % D;
        size_t partial = (first_head + head) * gridDim.z;
        float top = NEGATIVE_INFINITY, value = 0.f, total = 0.f;
#pragma unroll 4
        for (int s = 0; s < splits; s++) top = fmaxf(top, __ldcg(&workspace.sums[2 * (partial + s)]));
#pragma unroll 4
        for (int s = 0; s < splits; s++) {
            float weight = exp2f(__ldcg(&workspace.sums[2 * (partial + s)]) - top);
            value += weight * __ldcg(&workspace.outputs[(partial + s) * D + column]);
            total += weight * __ldcg(&workspace.sums[2 * (partial + s) + 1]);
        }
        to[at] = from_float<bf16>(value / total);
    }
}
KERNEL __launch_bounds__(256) attention_decode_64(AttentionArguments a, DecodeWorkspace workspace) { attention_decode<64>(a, workspace); }
KERNEL __launch_bounds__(256) attention_decode_128(AttentionArguments a, DecodeWorkspace workspace) { attention_decode<128>(a, workspace); }
