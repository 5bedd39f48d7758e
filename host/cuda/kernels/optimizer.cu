// AdamW with decoupled weight decay (Loshchilov and Hutter) over all tensors in one launch, and the norm of the gradient.
#include "common.cuh"

struct AdamWArguments {
    float* parameters;
    const float* gradients;
    float* exp_avg;
    float* exp_avg_sq;
    // Null, or the parameters in bf16, for the products.
    bf16* copy;
    long long count;
    // Values before `decayed` decay, the others do not.
    long long decayed;
    float rate, beta1, one_minus_beta1, beta2, one_minus_beta2;
    // 1 / (1 - beta^updates).
    float bias_correction1, bias_correction2;
    float epsilon, decay_factor;
    // Multiplies every gradient.
    float scale;
};

KERNEL adamw(AdamWArguments a) {
    long long stride = (long long)(gridDim.x) * blockDim.x;
    for (long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x; i < a.count; i += stride) {
        float gradient = a.gradients[i] * a.scale, parameter = a.parameters[i];
        float m = a.beta1 * a.exp_avg[i] + a.one_minus_beta1 * gradient;
        float v = a.beta2 * a.exp_avg_sq[i] + a.one_minus_beta2 * gradient * gradient;
        a.exp_avg[i] = m;
        a.exp_avg_sq[i] = v;
        float step = m * a.bias_correction1 / (sqrtf(v * a.bias_correction2) + a.epsilon);
        parameter = parameter * (i < a.decayed ? a.decay_factor : 1.f) - a.rate * step;
        a.parameters[i] = parameter;
        if (a.copy) a.copy[i] = from_float<bf16>(parameter);
    }
}

// The sum of squares of every block's share. The shares depend on the grid only, so the sum is reproducible.
KERNEL squared_norm(const float* values, long long count, double* partials) {
    __shared__ double sums[32];
    double sum = 0.;
    long long stride = (long long)(gridDim.x) * blockDim.x;
    for (long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        sum += double(values[i]) * double(values[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    if (lane_id() == 0) sums[warp_id()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = 0.;
        for (int warp = 0; warp < int(blockDim.x >> 5); warp++) all += sums[warp];
        partials[blockIdx.x] = all;
    }
}

// The sum of the shares, in order. One thread.
KERNEL sum_partials(const double* partials, int count, double* sum) {
    double all = 0.;
    for (int i = 0; i < count; i++) all += partials[i];
    if (threadIdx.x == 0) *sum = all;
}
