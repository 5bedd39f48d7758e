// What happens between the query, key and value projection and attention: bias, norm of the heads of queries and keys,
// rotation (half-split layout: value `i` of a head is rotated with value `i + dim / 2`), and the write of keys and
// values into the paged KV cache. One warp per head of a token.
#include "common.cuh"

// Cosine and sine of every position, [tokens, 2, half].
KERNEL rope_angles(const int* positions, const float* frequencies, float scale, float* angles, int tokens, int half) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= tokens * half) return;
    int token = i / half, pair = i % half;
    // The f32 product that the reference implementations compute.
    float angle = float(positions[token]) * frequencies[pair];
    float* row = angles + size_t(token) * 2 * half;
    row[pair] = cosf(angle) * scale;
    row[half + pair] = sinf(angle) * scale;
}

struct QkvArguments {
    // [tokens, (heads + 2 kv_heads) dim], in place.
    void* qkv;
    // Null, or a copy of queries, keys and values before norm and rotation, for the backward pass.
    void* raw;
    // Null where the model has none.
    const float* bias;
    const float* q_norm;
    const float* k_norm;
    const float* angles;
    // Null, or this layer's part of the first KV-cache block: [2, kv_heads, BLOCK_TOKENS, dim].
    void* kv;
    // Values from one block to the next.
    long long block_stride;
    // KV-cache block and place in it of every token: block * BLOCK_TOKENS + place.
    const int* slots;
    int heads, kv_heads, dim;
    float eps;
};

template <class T> DEVICE void finish_qkv(const QkvArguments& a) {
    let_next_start();
    wait_for_previous();
    int head = int(blockIdx.x) * int(blockDim.x >> 5) + warp_id(), token = int(blockIdx.y);
    int all = a.heads + 2 * a.kv_heads, half = a.dim / 2;
    if (head >= all) return;
    size_t at = (size_t(token) * all + head) * a.dim;
    T* x = static_cast<T*>(a.qkv) + at;
    bool rotated = head < a.heads + a.kv_heads;
    const float* gain = head < a.heads ? a.q_norm : rotated ? a.k_norm : nullptr;
    const float* bias = a.bias ? a.bias + size_t(head) * a.dim : nullptr;
    float scale = 1.f;
    if (gain || (a.raw && bias)) {
        float sum = 0.f;
        for (int i = lane_id(); i < a.dim; i += WARP) {
            float value = to_float(x[i]);
            if (bias) value = to_float(from_float<T>(value + bias[i]));
            sum += value * value;
        }
        if (gain) scale = rsqrtf(warp_sum(sum) / float(a.dim) + a.eps);
    }
    T* cache = nullptr;
    if (a.kv && head >= a.heads) {
        int slot = a.slots[token];
        cache = static_cast<T*>(a.kv) + size_t(slot / BLOCK_TOKENS) * size_t(a.block_stride) +
                (size_t(head - a.heads) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * a.dim;
    }
    const float* angles = a.angles + size_t(token) * a.dim;
    for (int i = lane_id(); i < half; i += WARP) {
        float low = to_float(x[i]), high = to_float(x[i + half]);
        if (bias) {
            low = to_float(from_float<T>(low + bias[i]));
            high = to_float(from_float<T>(high + bias[i + half]));
        }
        if (a.raw) {
            static_cast<T*>(a.raw)[at + i] = from_float<T>(low);
            static_cast<T*>(a.raw)[at + i + half] = from_float<T>(high);
        }
        if (gain) {
            low *= scale * gain[i];
            high *= scale * gain[i + half];
        }
        if (rotated) {
            float cosine = angles[i], sine = angles[half + i], before = low;
            low = low * cosine - high * sine;
            high = high * cosine + before * sine;
        }
        T first = from_float<T>(low), second = from_float<T>(high);
        x[i] = first;
        x[i + half] = second;
        if (cache) {
            cache[i] = first;
            cache[i + half] = second;
        }
    }
}
KERNEL finish_qkv_f32(QkvArguments a) { finish_qkv<float>(a); }
KERNEL finish_qkv_bf16(QkvArguments a) { finish_qkv<bf16>(a); }

// Replaces the gradient of queries and keys (`qkv`) by that before rotation and norm; `raw` has the values before them.
// `scales [tokens, heads + kv_heads]` gets the inverse root mean squares of the heads unless it is null, and `rotated`
// then the gradients after the norm.
template <class T> DEVICE void finish_qkv_backward(const QkvArguments& a, float* scales, T* rotated) {
    int head = int(blockIdx.x) * int(blockDim.x >> 5) + warp_id(), token = int(blockIdx.y);
    int all = a.heads + 2 * a.kv_heads, half = a.dim / 2;
    if (head >= a.heads + a.kv_heads) return;
    size_t at = (size_t(token) * all + head) * a.dim;
    T* dx = static_cast<T*>(a.qkv) + at;
    const T* raw = static_cast<const T*>(a.raw) + at;
    const float* gain = head < a.heads ? a.q_norm : a.k_norm;
    const float* angles = a.angles + size_t(token) * a.dim;
    float squares = 0.f, shared = 0.f;
    for (int i = lane_id(); i < half; i += WARP) {
        float low = to_float(dx[i]), high = to_float(dx[i + half]);
        float cosine = angles[i], sine = angles[half + i];
        float first = low * cosine + high * sine, second = high * cosine - low * sine;
        if (!gain) {
            dx[i] = from_float<T>(first);
            dx[i + half] = from_float<T>(second);
            continue;
        }
        float x = to_float(raw[i]), y = to_float(raw[i + half]);
        squares += x * x + y * y;
        shared += first * gain[i] * x + second * gain[i + half] * y;
    }
    if (!gain) return;
    float scale = rsqrtf(warp_sum(squares) / float(a.dim) + a.eps);
    shared = warp_sum(shared) * scale * scale * scale / float(a.dim);
    for (int i = lane_id(); i < half; i += WARP) {
        float low = to_float(dx[i]), high = to_float(dx[i + half]);
        float cosine = angles[i], sine = angles[half + i];
        float first = low * cosine + high * sine, second = high * cosine - low * sine;
        if (scales) {
            rotated[at + i] = from_float<T>(first);
            rotated[at + i + half] = from_float<T>(second);
        }
        dx[i] = from_float<T>(first * gain[i] * scale - shared * to_float(raw[i]));
        dx[i + half] = from_float<T>(second * gain[i + half] * scale - shared * to_float(raw[i + half]));
    }
    if (scales && lane_id() == 0) scales[size_t(token) * (a.heads + a.kv_heads) + head] = scale;
}
KERNEL finish_qkv_backward_f32(QkvArguments a, float* scales, float* rotated) { finish_qkv_backward<float>(a, scales, rotated); }
KERNEL finish_qkv_backward_bf16(QkvArguments a, float* scales, bf16* rotated) { finish_qkv_backward<bf16>(a, scales, rotated); }
