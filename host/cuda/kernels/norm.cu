// RMS norm of rows, y = x / rms(x) * gain (Zhang and Sennrich 2019), and its gradients. One block per row.
#include "common.cuh"

// x [rows, width] is the residual stream.
template <class T> DEVICE void rms_norm(const float* x, const float* gain, T* y, int width, float eps) {
    constexpr int N = Pack<T>::N;
    let_next_start();
    wait_for_previous();
    x += size_t(blockIdx.x) * width;
    y += size_t(blockIdx.x) * width;
    float scale = inverse_rms(x, width, eps);
    for (int i = int(threadIdx.x) * N; i < width; i += int(blockDim.x) * N) {
        float values[N], gains[N];
        load_values(x + i, values);
        load_values(gain + i, gains);
        Pack<T> result;
#pragma unroll
        for (int j = 0; j < N; j++) result.v[j] = from_float<T>(values[j] * scale * gains[j]);
        store_pack(y + i, result);
    }
}
KERNEL rms_norm_f32(const float* x, const float* gain, float* y, int width, float eps) { rms_norm(x, gain, y, width, eps); }
KERNEL rms_norm_bf16(const float* x, const float* gain, bf16* y, int width, float eps) { rms_norm(x, gain, y, width, eps); }

// dx (+)= the gradient of the input; `scales [rows]` gets the inverse root mean squares unless it is null.
template <class T>
DEVICE void rms_norm_backward(const float* x, const float* gain, const T* dy, T* dx, float* scales, int width, float eps, int accumulate) {
    constexpr int N = Pack<T>::N;
    x += size_t(blockIdx.x) * width;
    dy += size_t(blockIdx.x) * width;
    dx += size_t(blockIdx.x) * width;
    float scale = inverse_rms(x, width, eps);
    float shared = 0.f;
    for (int i = int(threadIdx.x) * N; i < width; i += int(blockDim.x) * N) {
        float values[N], gradients[N];
        load_values(x + i, values);
        load_values(dy + i, gradients);
#pragma unroll
        for (int j = 0; j < N; j++) shared += gradients[j] * gain[i + j] * values[j];
    }
    shared = block_sum(shared) * scale * scale * scale / float(width);
    for (int i = int(threadIdx.x) * N; i < width; i += int(blockDim.x) * N) {
        float values[N], gradients[N];
        load_values(x + i, values);
        load_values(dy + i, gradients);
        Pack<T> result;
        if (accumulate) result = load_pack(dx + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float value = gradients[j] * gain[i + j] * scale - shared * values[j];
            result.v[j] = from_float<T>(accumulate ? to_float(result.v[j]) + value : value);
        }
        store_pack(dx + i, result);
    }
    if (scales && threadIdx.x == 0) scales[blockIdx.x] = scale;
}
KERNEL rms_norm_backward_f32(const float* x, const float* gain, const float* dy, float* dx, float* scales, int width, float eps, int accumulate) {
    rms_norm_backward(x, gain, dy, dx, scales, width, eps, accumulate);
}
KERNEL rms_norm_backward_bf16(const float* x, const float* gain, const bf16* dy, bf16* dx, float* scales, int width, float eps, int accumulate) {
    rms_norm_backward(x, gain, dy, dx, scales, width, eps, accumulate);
}

// Rows of `width` values: `per_group` next to each other, groups `stride` values apart; their scales are `per_group` next
// to each other as well.
struct StridedRows {
    int rows, width, per_group, stride;
    DEVICE size_t at(int row) const { return size_t(row / per_group) * stride + size_t(row % per_group) * width; }
};

// dgain[c] += the sum over rows of dy x scale; `scale_stride` is the distance of two groups' scales. One block per 32
// columns; its warps share the rows.
template <class X, class T>
DEVICE void gain_backward(const X* x, const T* dy, const float* scales, float* dgain, StridedRows rows, int scale_stride) {
    __shared__ float sums[32][33];
    int column = int(blockIdx.x) * WARP + lane_id(), warps = int(blockDim.x >> 5);
    float sum = 0.f;
    if (column < rows.width)
        for (int row = warp_id(); row < rows.rows; row += warps) {
            float scale = scales[size_t(row / rows.per_group) * scale_stride + row % rows.per_group];
            sum += to_float(dy[rows.at(row) + column]) * to_float(x[rows.at(row) + column]) * scale;
        }
    sums[warp_id()][lane_id()] = sum;
    __syncthreads();
    if (warp_id() == 0 && column < rows.width) {
        float all = 0.f;
        for (int warp = 0; warp < warps; warp++) all += sums[warp][lane_id()];
        dgain[column] += all;
    }
}
KERNEL gain_backward_f32(const float* x, const float* dy, const float* scales, float* dgain, StridedRows rows, int scale_stride) {
    gain_backward(x, dy, scales, dgain, rows, scale_stride);
}
KERNEL gain_backward_bf16(const bf16* x, const bf16* dy, const float* scales, float* dgain, StridedRows rows, int scale_stride) {
    gain_backward(x, dy, scales, dgain, rows, scale_stride);
}
// x is the residual stream.
KERNEL gain_backward_residual_bf16(const float* x, const bf16* dy, const float* scales, float* dgain, StridedRows rows, int scale_stride) {
    gain_backward(x, dy, scales, dgain, rows, scale_stride);
}
