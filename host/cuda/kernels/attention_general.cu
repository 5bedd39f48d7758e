// Causal attention for every storage type and every head dimension up to 256, without tensor cores: for f32, and for
// head dimensions that the other kernels do not have. 4 warps share the keys (or queries) of one query (or key).
#include "attention.cuh"

constexpr int GENERAL_WARPS = 4;
// Dimensions of a lane.
constexpr int PER_LANE = 256 / WARP;

template <class T> DEVICE void load_lane(float (&to)[PER_LANE], const T* from, int dim) {
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int at = i * WARP + lane_id();
        to[i] = at < dim ? to_float(from[at]) : 0.f;
    }
}
DEVICE float dot(const float (&a)[PER_LANE], const float (&b)[PER_LANE]) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum += a[i] * b[i];
    return warp_sum(sum);
}
// The sum over the warps, in warp 0.
DEVICE void add_warps(float (&values)[PER_LANE], float (*shared)[256]) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) shared[warp_id()][i * WARP + lane_id()] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        values[i] = 0.f;
        for (int warp = 0; warp < GENERAL_WARPS; warp++) values[i] += shared[warp][i * WARP + lane_id()];
    }
}

// One block per query (tile blockIdx.x) and head (blockIdx.y).
template <class T, bool PAGED> DEVICE void attention_general(const AttentionArguments& a) {
    __shared__ float shared[GENERAL_WARPS][256];
    __shared__ float tops[GENERAL_WARPS], sums[GENERAL_WARPS];
    int sequence = a.tiles[2 * blockIdx.x], query = a.tiles[2 * blockIdx.x + 1], head = int(blockIdx.y);
    int kv_head = head * a.kv_heads / a.heads, start = a.starts[sequence];
    int visible = (PAGED ? a.past[sequence] : 0) + query + 1;
    size_t to_value = PAGED ? size_t(a.kv_heads) * BLOCK_TOKENS * a.dim : size_t(a.kv_heads) * a.dim;
    float q[PER_LANE], output[PER_LANE] = {}, k[PER_LANE], v[PER_LANE], top = NEGATIVE_INFINITY, sum = 0.f;
    load_lane(q, static_cast<const T*>(a.qkv) + size_t(start + query) * a.qkv_stride + size_t(head) * a.dim, a.dim);
    for (int token = warp_id(); token < visible; token += GENERAL_WARPS) {
        const T* key = PAGED ? cached_key<T>(a, sequence, kv_head, token) : packed_key<T>(a, start, kv_head, token);
        load_lane(k, key, a.dim);
        load_lane(v, key + to_value, a.dim);
        float score = dot(q, k) * a.scale, before = top;
        top = fmaxf(top, score);
        float correction = __expf(before - top), weight = __expf(score - top);
        sum = sum * correction + weight;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) output[i] = output[i] * correction + weight * v[i];
    }
    if (lane_id() == 0) {
        tops[warp_id()] = top;
        sums[warp_id()] = sum;
    }
    __syncthreads();
    float largest = NEGATIVE_INFINITY, total = 0.f;
    for (int warp = 0; warp < GENERAL_WARPS; warp++) largest = fmaxf(largest, tops[warp]);
    for (int warp = 0; warp < GENERAL_WARPS; warp++)
        total += sums[warp] == 0.f ? 0.f : sums[warp] * __expf(tops[warp] - largest);
    float weight = sum == 0.f ? 0.f : __expf(top - largest);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) output[i] *= weight;
    add_warps(output, shared);
    if (warp_id() != 0) return;
    T* to = static_cast<T*>(a.out) + size_t(start + query) * query_width(a) + size_t(head) * a.dim;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int at = i * WARP + lane_id();
        if (at < a.dim) to[at] = from_float<T>(output[i] / total);
    }
    if (a.lse && lane_id() == 0) a.lse[size_t(head) * a.lse_stride + start + query] = largest + logf(total);
}
KERNEL attention_general_paged_f32(AttentionArguments a) { attention_general<float, true>(a); }
KERNEL attention_general_paged_bf16(AttentionArguments a) { attention_general<bf16, true>(a); }
KERNEL attention_general_packed_f32(AttentionArguments a) { attention_general<float, false>(a); }
KERNEL attention_general_packed_bf16(AttentionArguments a) { attention_general<bf16, false>(a); }

// Gradient of one query (tile blockIdx.x) of a head (blockIdx.y).
template <class T> DEVICE void attention_general_dq(const AttentionArguments& a, const AttentionGradients& g) {
    __shared__ float shared[GENERAL_WARPS][256];
    int sequence = a.tiles[2 * blockIdx.x], query = a.tiles[2 * blockIdx.x + 1], head = int(blockIdx.y);
    int kv_head = head * a.kv_heads / a.heads, start = a.starts[sequence];
    size_t row = size_t(start + query), at = size_t(head) * a.lse_stride + row;
    float q[PER_LANE], d[PER_LANE], k[PER_LANE], v[PER_LANE], dq[PER_LANE] = {};
    load_lane(q, static_cast<const T*>(a.qkv) + row * a.qkv_stride + size_t(head) * a.dim, a.dim);
    load_lane(d, static_cast<const T*>(g.dout) + row * query_width(a) + size_t(head) * a.dim, a.dim);
    float lse = a.lse[at], delta = g.delta[at];
    for (int token = warp_id(); token <= query; token += GENERAL_WARPS) {
        const T* key = packed_key<T>(a, start, kv_head, token);
        load_lane(k, key, a.dim);
        load_lane(v, key + size_t(a.kv_heads) * a.dim, a.dim);
        float weight = __expf(dot(q, k) * a.scale - lse), slope = weight * (dot(d, v) - delta) * a.scale;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) dq[i] += slope * k[i];
    }
    add_warps(dq, shared);
    if (warp_id() != 0) return;
    T* to = static_cast<T*>(g.dqkv) + row * a.qkv_stride + size_t(head) * a.dim;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int column = i * WARP + lane_id();
        if (column < a.dim) to[column] = from_float<T>(dq[i]);
    }
}
KERNEL attention_general_dq_f32(AttentionArguments a, AttentionGradients g) { attention_general_dq<float>(a, g); }
KERNEL attention_general_dq_bf16(AttentionArguments a, AttentionGradients g) { attention_general_dq<bf16>(a, g); }

// Gradients of one key and value (tile blockIdx.x) of a key head (blockIdx.y).
template <class T> DEVICE void attention_general_dkdv(const AttentionArguments& a, const AttentionGradients& g) {
    __shared__ float shared[GENERAL_WARPS][256];
    int sequence = a.tiles[2 * blockIdx.x], token = a.tiles[2 * blockIdx.x + 1], kv_head = int(blockIdx.y);
    int start = a.starts[sequence], length = a.starts[sequence + 1] - start, count = a.heads / a.kv_heads;
    float k[PER_LANE], v[PER_LANE], q[PER_LANE], d[PER_LANE], dk[PER_LANE] = {}, dv[PER_LANE] = {};
    const T* key = packed_key<T>(a, start, kv_head, token);
    load_lane(k, key, a.dim);
    load_lane(v, key + size_t(a.kv_heads) * a.dim, a.dim);
    for (int step = warp_id(); step < (length - token) * count; step += GENERAL_WARPS) {
        int head = kv_head * count + step % count;
        size_t row = size_t(start + token + step / count), at = size_t(head) * a.lse_stride + row;
        load_lane(q, static_cast<const T*>(a.qkv) + row * a.qkv_stride + size_t(head) * a.dim, a.dim);
        load_lane(d, static_cast<const T*>(g.dout) + row * query_width(a) + size_t(head) * a.dim, a.dim);
        float weight = __expf(dot(q, k) * a.scale - a.lse[at]), slope = weight * (dot(d, v) - g.delta[at]) * a.scale;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            dv[i] += weight * d[i];
            dk[i] += slope * q[i];
        }
    }
    add_warps(dk, shared);
    add_warps(dv, shared);
    if (warp_id() != 0) return;
    T* to = static_cast<T*>(g.dqkv) + size_t(start + token) * a.qkv_stride + query_width(a) + size_t(kv_head) * a.dim;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int column = i * WARP + lane_id();
        if (column < a.dim) {
            to[column] = from_float<T>(dk[i]);
            to[key_width(a) + column] = from_float<T>(dv[i]);
        }
    }
}
KERNEL attention_general_dkdv_f32(AttentionArguments a, AttentionGradients g) { attention_general_dkdv<float>(a, g); }
KERNEL attention_general_dkdv_bf16(AttentionArguments a, AttentionGradients g) { attention_general_dkdv<bf16>(a, g); }
