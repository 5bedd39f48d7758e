// What happens between the query, key and value projection and attention: bias, norm of the heads of queries and keys,
// rotation (half-split layout: value `i` of a head is rotated with value `i + dim / 2`), and the write of keys and
// values into the paged KV cache. Several lanes of a warp per head of a token.
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

// N consecutive values.
template <class T, int N> struct alignas(N * sizeof(T)) Part {
    T v[N];
};
template <int N, class T> DEVICE Part<T, N> load_part(const T* from) { return *reinterpret_cast<const Part<T, N>*>(from); }
template <int N, class T> DEVICE void store_part(T* to, const Part<T, N>& part) { *reinterpret_cast<Part<T, N>*>(to) = part; }

// The lanes that a head takes, each with parts of N values of both halves: a power of two.
template <int N> DEVICE int head_lanes(int half) {
    int lanes = 1;
    while (lanes < WARP && lanes * N < half) lanes *= 2;
    return lanes;
}
// The sum over the lanes of a head, in all of them. All lanes of the warp take part.
DEVICE float head_sum(float value, int lanes) {
    for (int offset = lanes / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

// A thread's head; a block has all lanes of a head.
struct HeadOfThread {
    int token, head, lane, lanes;
    bool exists;
};
template <int N> DEVICE HeadOfThread head_of_thread(int half, int heads, int tokens) {
    HeadOfThread own;
    own.lanes = head_lanes<N>(half);
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, index = thread / unsigned(own.lanes);
    own.lane = int(thread % unsigned(own.lanes));
    own.exists = index < unsigned(tokens) * unsigned(heads);
    own.token = own.exists ? int(index / unsigned(heads)) : 0;
    own.head = own.exists ? int(index % unsigned(heads)) : 0;
    return own;
}

// N divides half of `dim`.
template <class T, int N> DEVICE void finish_qkv(const QkvArguments& a, int tokens) {
    let_next_start();
    wait_for_previous();
    int all = a.heads + 2 * a.kv_heads, half = a.dim / 2;
    HeadOfThread own = head_of_thread<N>(half, all, tokens);
    int head = own.head, end = own.exists ? half : 0;
    size_t at = (size_t(own.token) * all + head) * a.dim;
    T* x = static_cast<T*>(a.qkv) + at;
    bool rotated = head < a.heads + a.kv_heads;
    const float* gain = head < a.heads ? a.q_norm : rotated ? a.k_norm : nullptr;
    const float* bias = a.bias ? a.bias + size_t(head) * a.dim : nullptr;
    auto load = [&](int i) {
        Part<T, N> part = load_part<N>(x + i);
        if (!bias) return part;
        float added[N];
        load_floats(added, bias + i);
#pragma unroll
        for (int j = 0; j < N; j++) part.v[j] = from_float<T>(to_float(part.v[j]) + added[j]);
        return part;
    };
    float scale = 1.f;
    if (a.q_norm) {
        float sum = 0.f;
        for (int i = own.lane * N; i < end; i += own.lanes * N) {
            Part<T, N> low = load(i), high = load(i + half);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum += to_float(low.v[j]) * to_float(low.v[j]) + to_float(high.v[j]) * to_float(high.v[j]);
        }
        sum = head_sum(sum, own.lanes);
        if (gain) scale = rsqrtf(sum / float(a.dim) + a.eps);
    }
    T* cache = nullptr;
    if (a.kv && head >= a.heads && own.exists) {
        int slot = a.slots[own.token];
        cache = static_cast<T*>(a.kv) + size_t(slot / BLOCK_TOKENS) * size_t(a.block_stride) +
                (size_t(head - a.heads) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * a.dim;
    }
    const float* angles = a.angles + size_t(own.token) * a.dim;
    for (int i = own.lane * N; i < end; i += own.lanes * N) {
        Part<T, N> low = load(i), high = load(i + half);
        if (a.raw) {
            store_part<N>(static_cast<T*>(a.raw) + at + i, low);
            store_part<N>(static_cast<T*>(a.raw) + at + i + half, high);
        }
        float first[N], second[N], one[N], two[N];
#pragma unroll
        for (int j = 0; j < N; j++) first[j] = to_float(low.v[j]), second[j] = to_float(high.v[j]);
        if (gain) {
            load_floats(one, gain + i);
            load_floats(two, gain + i + half);
#pragma unroll
            for (int j = 0; j < N; j++) first[j] *= scale * one[j], second[j] *= scale * two[j];
        }
        if (rotated) {
            load_floats(one, angles + i);
            load_floats(two, angles + half + i);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float before = first[j];
                first[j] = first[j] * one[j] - second[j] * two[j];
                second[j] = second[j] * one[j] + before * two[j];
            }
        }
#pragma unroll
        for (int j = 0; j < N; j++) low.v[j] = from_float<T>(first[j]), high.v[j] = from_float<T>(second[j]);
        store_part<N>(x + i, low);
        store_part<N>(x + i + half, high);
        if (cache) {
            store_part<N>(cache + i, low);
            store_part<N>(cache + i + half, high);
        }
    }
}
KERNEL finish_qkv_f32(QkvArguments a, int tokens) { finish_qkv<float, 1>(a, tokens); }
KERNEL finish_qkv_bf16(QkvArguments a, int tokens) { finish_qkv<bf16, 1>(a, tokens); }
KERNEL finish_qkv_parts_f32(QkvArguments a, int tokens) { finish_qkv<float, 4>(a, tokens); }
KERNEL finish_qkv_parts_bf16(QkvArguments a, int tokens) { finish_qkv<bf16, 8>(a, tokens); }

// Replaces the gradient of queries and keys (`qkv`) by that before rotation and norm; `raw` has the values before them.
// `scales [tokens, heads + kv_heads]` gets the inverse root mean squares of the heads unless it is null, and `rotated`
// then the gradients after the norm.
template <class T, int N> DEVICE void finish_qkv_backward(const QkvArguments& a, float* scales, T* rotated, int tokens) {
    int all = a.heads + 2 * a.kv_heads, half = a.dim / 2;
    HeadOfThread own = head_of_thread<N>(half, a.heads + a.kv_heads, tokens);
    int head = own.head, end = own.exists ? half : 0;
    size_t at = (size_t(own.token) * all + head) * a.dim;
    T* dx = static_cast<T*>(a.qkv) + at;
    const T* raw = static_cast<const T*>(a.raw) + at;
    const float* gain = head < a.heads ? a.q_norm : a.k_norm;
    const float* angles = a.angles + size_t(own.token) * a.dim;
    // The gradients before the rotation.
    auto load = [&](int i, float (&first)[N], float (&second)[N]) {
        Part<T, N> low = load_part<N>(dx + i), high = load_part<N>(dx + i + half);
        float cosines[N], sines[N];
        load_floats(cosines, angles + i);
        load_floats(sines, angles + half + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            first[j] = to_float(low.v[j]) * cosines[j] + to_float(high.v[j]) * sines[j];
            second[j] = to_float(high.v[j]) * cosines[j] - to_float(low.v[j]) * sines[j];
        }
    };
    auto store = [&](T* to, int i, const float (&first)[N], const float (&second)[N]) {
        Part<T, N> low, high;
#pragma unroll
        for (int j = 0; j < N; j++) low.v[j] = from_float<T>(first[j]), high.v[j] = from_float<T>(second[j]);
        store_part<N>(to + i, low);
        store_part<N>(to + i + half, high);
    };
    float first[N], second[N];
    if (!gain) {
        for (int i = own.lane * N; i < end; i += own.lanes * N) {
            load(i, first, second);
            store(dx, i, first, second);
        }
        return;
    }
    float squares = 0.f, shared = 0.f;
    for (int i = own.lane * N; i < end; i += own.lanes * N) {
        Part<T, N> low = load_part<N>(raw + i), high = load_part<N>(raw + i + half);
        float one[N], two[N];
        load_floats(one, gain + i);
        load_floats(two, gain + i + half);
        load(i, first, second);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float x = to_float(low.v[j]), y = to_float(high.v[j]);
            squares += x * x + y * y;
            shared += first[j] * one[j] * x + second[j] * two[j] * y;
        }
    }
    float scale = rsqrtf(head_sum(squares, own.lanes) / float(a.dim) + a.eps);
    shared = head_sum(shared, own.lanes) * scale * scale * scale / float(a.dim);
    for (int i = own.lane * N; i < end; i += own.lanes * N) {
        Part<T, N> low = load_part<N>(raw + i), high = load_part<N>(raw + i + half);
        float one[N], two[N];
        load_floats(one, gain + i);
        load_floats(two, gain + i + half);
        load(i, first, second);
        if (scales) store(rotated + at, i, first, second);
#pragma unroll
        for (int j = 0; j < N; j++) {
            first[j] = first[j] * one[j] * scale - shared * to_float(low.v[j]);
            second[j] = second[j] * two[j] * scale - shared * to_float(high.v[j]);
        }
        store(dx, i, first, second);
    }
    if (scales && own.exists && own.lane == 0) scales[size_t(own.token) * (a.heads + a.kv_heads) + head] = scale;
}
KERNEL finish_qkv_backward_f32(QkvArguments a, float* scales, float* rotated, int tokens) {
    finish_qkv_backward<float, 1>(a, scales, rotated, tokens);
}
KERNEL finish_qkv_backward_bf16(QkvArguments a, float* scales, bf16* rotated, int tokens) {
    finish_qkv_backward<bf16, 1>(a, scales, rotated, tokens);
}
KERNEL finish_qkv_backward_parts_f32(QkvArguments a, float* scales, float* rotated, int tokens) {
    finish_qkv_backward<float, 4>(a, scales, rotated, tokens);
}
KERNEL finish_qkv_backward_parts_bf16(QkvArguments a, float* scales, bf16* rotated, int tokens) {
    finish_qkv_backward<bf16, 8>(a, scales, rotated, tokens);
}
