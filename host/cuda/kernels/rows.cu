// Rows of the residual stream, biases, and the gated activation silu(gate) * up (Shazeer 2020).
#include "common.cuh"

// x [tokens, width] = the embedding of each token. One block per token.
template <class T> DEVICE void embed(const T* embedding, const int* tokens, float* x, int width) {
    embedding += size_t(tokens[blockIdx.x]) * width;
    x += size_t(blockIdx.x) * width;
    for (int i = int(threadIdx.x) * 4; i < width; i += int(blockDim.x) * 4) {
        Pack<float> values;
#pragma unroll
        for (int j = 0; j < 4; j++) values.v[j] = to_float(embedding[i + j]);
        store_pack(x + i, values);
    }
}
KERNEL embed_f32(const float* embedding, const int* tokens, float* x, int width) { embed(embedding, tokens, x, width); }
KERNEL embed_bf16(const bf16* embedding, const int* tokens, float* x, int width) { embed(embedding, tokens, x, width); }

template <class T> DEVICE void copy_row(const T* from, T* to, int width) {
    constexpr int N = Pack<T>::N;
    for (int i = int(threadIdx.x) * N; i < width; i += int(blockDim.x) * N) store_pack(to + i, load_pack(from + i));
}
#define ROW_KERNELS(T, NAME)                                                                                                   \
    /* to[i] = from[rows[i]] */                                                                                                \
    KERNEL gather_rows_##NAME(const T* from, const int* rows, T* to, int width) {                                              \
        copy_row(from + size_t(rows[blockIdx.x]) * width, to + size_t(blockIdx.x) * width, width);                             \
    }                                                                                                                          \
    /* to[rows[i]] = from[i] */                                                                                                \
    KERNEL scatter_rows_##NAME(const T* from, const int* rows, T* to, int width) {                                             \
        copy_row(from + size_t(blockIdx.x) * width, to + size_t(rows[blockIdx.x]) * width, width);                             \
    }
ROW_KERNELS(float, f32)
ROW_KERNELS(bf16, bf16)

// y [rows, width] += bias. One block per row.
template <class T> DEVICE void add_bias(T* y, const float* bias, int width) {
    y += size_t(blockIdx.x) * width;
    for (int i = int(threadIdx.x); i < width; i += int(blockDim.x)) y[i] = from_float<T>(to_float(y[i]) + bias[i]);
}
KERNEL add_bias_f32(float* y, const float* bias, int width) { add_bias(y, bias, width); }
KERNEL add_bias_bf16(bf16* y, const float* bias, int width) { add_bias(y, bias, width); }

// dbias[c] += the sum over rows of dy, whose rows are `stride` apart. One block per 32 columns.
template <class T> DEVICE void bias_backward(const T* dy, float* dbias, int rows, int width, int stride) {
    __shared__ float sums[32][33];
    int column = int(blockIdx.x) * WARP + lane_id(), warps = int(blockDim.x >> 5);
    float sum = 0.f;
    if (column < width)
        for (int row = warp_id(); row < rows; row += warps) sum += to_float(dy[size_t(row) * stride + column]);
    sums[warp_id()][lane_id()] = sum;
    __syncthreads();
    if (warp_id() == 0 && column < width) {
        float all = 0.f;
        for (int warp = 0; warp < warps; warp++) all += sums[warp][lane_id()];
        dbias[column] += all;
    }
}
KERNEL bias_backward_f32(const float* dy, float* dbias, int rows, int width, int stride) { bias_backward(dy, dbias, rows, width, stride); }
KERNEL bias_backward_bf16(const bf16* dy, float* dbias, int rows, int width, int stride) { bias_backward(dy, dbias, rows, width, stride); }

// dembedding[tokens[i]] += dx[i], rows in order, so that the sum does not depend on timing. One thread per column.
template <class T> DEVICE void embed_backward(const T* dx, const int* tokens, float* dembedding, int rows, int width) {
    int column = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= width) return;
    for (int row = 0; row < rows; row++)
        dembedding[size_t(tokens[row]) * width + column] += to_float(dx[size_t(row) * width + column]);
}
KERNEL embed_backward_f32(const float* dx, const int* tokens, float* dembedding, int rows, int width) { embed_backward(dx, tokens, dembedding, rows, width); }
KERNEL embed_backward_bf16(const bf16* dx, const int* tokens, float* dembedding, int rows, int width) { embed_backward(dx, tokens, dembedding, rows, width); }

// y [rows, width] from gate_up [rows, 2 width]. One thread per pack; `packs` = rows * width / N.
template <class T> DEVICE void swiglu(const T* gate_up, T* y, int width, long long packs) {
    constexpr int N = Pack<T>::N;
    let_next_start();
    wait_for_previous();
    long long at = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= packs) return;
    int per_row = width / N;
    long long row = at / per_row;
    int column = int(at % per_row) * N;
    const T* from = gate_up + size_t(row) * 2 * width + column;
    Pack<T> gate = load_pack(from), up = load_pack(from + width);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float g = to_float(gate.v[j]);
        gate.v[j] = from_float<T>(g * sigmoid(g) * to_float(up.v[j]));
    }
    store_pack(y + size_t(row) * width + column, gate);
}
KERNEL swiglu_f32(const float* gate_up, float* y, int width, long long packs) { swiglu(gate_up, y, width, packs); }
KERNEL swiglu_bf16(const bf16* gate_up, bf16* y, int width, long long packs) { swiglu(gate_up, y, width, packs); }

// Replaces gate_up by its gradient, given dy [rows, width].
template <class T> DEVICE void swiglu_backward(T* gate_up, const T* dy, int width, long long packs) {
    constexpr int N = Pack<T>::N;
    long long at = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= packs) return;
    int per_row = width / N;
    long long row = at / per_row;
    int column = int(at % per_row) * N;
    T* to = gate_up + size_t(row) * 2 * width + column;
    Pack<T> gate = load_pack(to), up = load_pack(to + width), gradient = load_pack(dy + size_t(row) * width + column);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float g = to_float(gate.v[j]), u = to_float(up.v[j]), d = to_float(gradient.v[j]), s = sigmoid(g);
        gate.v[j] = from_float<T>(d * u * s * (1.f + g * (1.f - s)));
        up.v[j] = from_float<T>(d * g * s);
    }
    store_pack(to, gate);
    store_pack(to + width, up);
}
KERNEL swiglu_backward_f32(float* gate_up, const float* dy, int width, long long packs) { swiglu_backward(gate_up, dy, width, packs); }
KERNEL swiglu_backward_bf16(bf16* gate_up, const bf16* dy, int width, long long packs) { swiglu_backward(gate_up, dy, width, packs); }
