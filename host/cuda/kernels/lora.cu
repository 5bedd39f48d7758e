// LoRA for rows with different adapters: inner = x A^T, then y += scale inner B^T, where A, B and scale are those of the
// adapter in the row's slot. For batches of decoding rows; long runs of one adapter use matrix products.
#include "common.cuh"

// The matrices of one target of one adapter.
struct LoraMatrices {
    // [rank, inputs]; null where the adapter does not change the target.
    const void* a;
    // [outputs, rank].
    const void* b;
    // A multiple of 8.
    int rank;
    float scale;
};

struct LoraArguments {
    // [slots, targets].
    const LoraMatrices* table;
    // Slot of every token; negative: no adapter.
    const int* slots;
    // [tokens, x_stride].
    const void* x;
    int x_stride, inputs;
    // [tokens, targets, max_rank] of f32.
    float* inner;
    int max_rank;
    // [tokens, y_stride]; each target changes its own columns.
    void* y;
    int y_stride;
    // Number of targets that read the same x, at most 3, and the number of columns that they change.
    int targets, width;
    // First column of the second and the third target.
    int second, third;
    // y is the residual stream, in f32 whatever the storage type.
    int residual;
};

// Rounds as the matrix products that long runs use. One warp per row of A: grid (ceil(max_rank / warps), targets, tokens).
template <class T> DEVICE void lora_shrink(const LoraArguments& a) {
    constexpr int N = Pack<T>::N;
    let_next_start();
    wait_for_previous();
    int token = int(blockIdx.z), target = int(blockIdx.y), slot = a.slots[token];
    if (slot < 0) return;
    LoraMatrices own = a.table[size_t(slot) * a.targets + target];
    int row = int(blockIdx.x) * int(blockDim.x >> 5) + warp_id();
    if (!own.a || row >= own.rank) return;
    const T* weights = static_cast<const T*>(own.a) + size_t(row) * a.inputs;
    const T* x = static_cast<const T*>(a.x) + size_t(token) * a.x_stride;
    float sum = 0.f;
#pragma unroll 4
    for (int i = lane_id() * N; i < a.inputs; i += WARP * N) {
        Pack<T> w = load_pack(weights + i), v = load_pack(x + i);
#pragma unroll
        for (int j = 0; j < N; j++) sum += to_float(w.v[j]) * to_float(v.v[j]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) a.inner[(size_t(token) * a.targets + target) * a.max_rank + row] = to_float(from_float<T>(sum));
}
KERNEL lora_shrink_f32(LoraArguments a) { lora_shrink<float>(a); }
KERNEL lora_shrink_bf16(LoraArguments a) { lora_shrink<bf16>(a); }

// One thread per column of y: grid (ceil(columns / threads), tokens).
template <class T> DEVICE void lora_expand(const LoraArguments& a) {
    constexpr int N = Pack<T>::N;
    let_next_start();
    wait_for_previous();
    int token = int(blockIdx.y), slot = a.slots[token], column = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (slot < 0 || column >= a.width) return;
    int target = 0, first = 0;
    if (a.targets > 1 && column >= a.second) target = 1, first = a.second;
    if (a.targets > 2 && column >= a.third) target = 2, first = a.third;
    LoraMatrices own = a.table[size_t(slot) * a.targets + target];
    if (!own.a) return;
    const T* weights = static_cast<const T*>(own.b) + size_t(column - first) * own.rank;
    const float* inner = a.inner + (size_t(token) * a.targets + target) * a.max_rank;
    float sum = 0.f;
    for (int i = 0; i < own.rank; i += N) {
        Pack<T> w = load_pack(weights + i);
#pragma unroll
        for (int j = 0; j < N; j++) sum += to_float(w.v[j]) * inner[i + j];
    }
    size_t to = size_t(token) * a.y_stride + column;
    if (a.residual) {
        static_cast<float*>(a.y)[to] += own.scale * sum;
    } else {
        T* y = static_cast<T*>(a.y) + to;
        *y = from_float<T>(to_float(*y) + own.scale * sum);
    }
}
KERNEL lora_expand_f32(LoraArguments a) { lora_expand<float>(a); }
KERNEL lora_expand_bf16(LoraArguments a) { lora_expand<bf16>(a); }
