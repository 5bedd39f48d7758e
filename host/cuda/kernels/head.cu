// The language-model head over a chunk of positions: log-prob and entropy of recorded tokens, log-probs of candidates,
// and the gradient of the logits from the loss's partial derivatives. One block per position.
//
// With z = logits / temperature and p = softmax(z): `d logprob / dz_i = [i = target] - p_i` and `d entropy / dz_i =
// -p_i (ln p_i + entropy)`. The log-prob of a candidate has the same derivative as that of the target.
#include "select.cuh"

struct HeadArguments {
    // [positions, stride]; the stride is a multiple of 8.
    const float* logits;
    int stride, vocab;
    const int* targets;
    const float* inverse_temperatures;
    // Outputs of `head_scores`, one per position each: largest z, ln(sum(exp(z - largest))).
    float* logprobs;
    float* entropies;
    float* largest;
    float* log_sums;
    // Candidates of position i are those from `first[i]` to `first[i + 1]`.
    const int* first_candidates;
    int* candidates;
    float* candidate_logprobs;
};

// Largest z, sum of e = exp(z - largest), and sum of e (z - largest).
struct Moments {
    float top, sum, weighted;
    DEVICE void merge(float other_top, float other_sum, float other_weighted) {
        float both = fmaxf(top, other_top);
        if (both == NEGATIVE_INFINITY) return;
        float own_shift = top - both, other_shift = other_top - both;
        float own_scale = expf(own_shift), other_scale = expf(other_shift);
        weighted = (own_scale > 0.f ? own_scale * (weighted + own_shift * sum) : 0.f) +
                   (other_scale > 0.f ? other_scale * (other_weighted + other_shift * other_sum) : 0.f);
        sum = own_scale * sum + other_scale * other_sum;
        top = both;
    }
};

KERNEL __launch_bounds__(1024, 1) head_scores(HeadArguments a) {
    __shared__ float shared[3][32];
    int position = int(blockIdx.x);
    const float* logits = a.logits + size_t(position) * a.stride;
    float inverse = a.inverse_temperatures[position];
    Moments own = {NEGATIVE_INFINITY, 0.f, 0.f};
    // Eight at once, so that enough loads are under way. The padding of a row may hold anything.
    for (int i = int(threadIdx.x) * 8; i < a.vocab; i += int(blockDim.x) * 8) {
        float z[8], top = NEGATIVE_INFINITY;
        load_floats(z, logits + i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            z[j] *= inverse;
            if (i + j < a.vocab) top = fmaxf(top, z[j]);
        }
        if (top > own.top) own.merge(top, 0.f, 0.f);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (i + j >= a.vocab) continue;
            float e = expf(z[j] - own.top);
            own.sum += e;
            own.weighted += e * (z[j] - own.top);
        }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        float top = __shfl_xor_sync(ALL_LANES, own.top, offset), sum = __shfl_xor_sync(ALL_LANES, own.sum, offset);
        float weighted = __shfl_xor_sync(ALL_LANES, own.weighted, offset);
        own.merge(top, sum, weighted);
    }
    if (lane_id() == 0) shared[0][warp_id()] = own.top, shared[1][warp_id()] = own.sum, shared[2][warp_id()] = own.weighted;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < int(blockDim.x >> 5); warp++) own.merge(shared[0][warp], shared[1][warp], shared[2][warp]);
    float log_sum = logf(own.sum);
    a.logprobs[position] = logits[a.targets[position]] * inverse - own.top - log_sum;
    a.entropies[position] = log_sum - own.weighted / own.sum;
    a.largest[position] = own.top;
    a.log_sums[position] = log_sum;
}

// Log-probs of given candidates.
KERNEL __launch_bounds__(1024, 1) head_candidates(HeadArguments a) {
    int position = int(blockIdx.x);
    const float* logits = a.logits + size_t(position) * a.stride;
    float inverse = a.inverse_temperatures[position], shift = a.largest[position] + a.log_sums[position];
    for (int i = a.first_candidates[position] + int(threadIdx.x); i < a.first_candidates[position + 1]; i += int(blockDim.x))
        a.candidate_logprobs[i] = logits[a.candidates[i]] * inverse - shift;
}

// Most candidates that `head_top` finds per position.
constexpr int MAX_TOP = 1024;

// Writes the most likely tokens as candidates, best first, where `find_top[position]`.
KERNEL __launch_bounds__(1024, 1) head_top(HeadArguments a, const int* find_top) {
    __shared__ Histogram histogram;
    __shared__ unsigned long long pairs[MAX_TOP], sorted[MAX_TOP];
    __shared__ int found;
    int position = int(blockIdx.x), first = a.first_candidates[position], count = a.first_candidates[position + 1] - first;
    if (!find_top[position] || count == 0) return;
    const float* logits = a.logits + size_t(position) * a.stride;
    auto visit = [&](auto f) {
        for (int i = int(threadIdx.x); i < a.vocab; i += int(blockDim.x)) f(ordered_key(logits[i]), 1ull, uint32_t(i));
    };
    Cut cut = select_count(histogram, count, visit);
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    visit([&](uint32_t key, unsigned long long, uint32_t id) {
        if (cut.keeps(key, id)) pairs[atomicAdd(&found, 1)] = make_pair(key, id);
    });
    sort_pairs(pairs, sorted, count);
    for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) a.candidates[first + i] = int(pair_id(sorted[i]));
}

struct HeadGradients {
    const float* d_logprobs;
    const float* d_entropies;
    // Null, or one per candidate.
    const float* d_candidates;
    // [positions, stride] in the storage type.
    void* dlogits;
};

template <class T> DEVICE void head_backward(const HeadArguments& a, const HeadGradients& g) {
    int position = int(blockIdx.x);
    const float* logits = a.logits + size_t(position) * a.stride;
    T* dlogits = static_cast<T*>(g.dlogits) + size_t(position) * a.stride;
    float inverse = a.inverse_temperatures[position], top = a.largest[position], log_sum = a.log_sums[position];
    float d_logprob = g.d_logprobs[position], d_entropy = g.d_entropies[position], all = d_logprob;
    int first = 0, last = 0;
    if (g.d_candidates) first = a.first_candidates[position], last = a.first_candidates[position + 1];
    float own = 0.f;
    for (int i = first + int(threadIdx.x); i < last; i += int(blockDim.x)) own += g.d_candidates[i];
    all += block_sum(own);
    float constant = all + d_entropy * (a.entropies[position] - log_sum);
    int target = a.targets[position];
    auto slope = [&](float logit) {
        float z = logit * inverse - top;
        return -inverse * expf(z - log_sum) * (d_entropy * z + constant);
    };
    constexpr int N = Pack<T>::N;
    // The padding of a row is zero, because the product with the head reads it.
    for (int i = int(threadIdx.x) * N; i < a.stride; i += int(blockDim.x) * N) {
        float values[N];
        load_floats(values, logits + i);
        Pack<T> result;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float value = i + j < a.vocab ? slope(values[j]) : 0.f;
            if (i + j == target) value += inverse * d_logprob;
            result.v[j] = from_float<T>(value);
        }
        store_pack(dlogits + i, result);
    }
    if (first == last) return;
    __syncthreads();
    // Candidates are few. The first thread that meets a token adds all its occurrences, so the sum has one order.
    for (int i = first + int(threadIdx.x); i < last; i += int(blockDim.x)) {
        int id = a.candidates[i];
        float sum = 0.f;
        bool is_first = true;
        for (int j = first; j < last && is_first; j++) {
            if (a.candidates[j] != id) continue;
            if (j < i) is_first = false;
            sum += g.d_candidates[j];
        }
        if (!is_first) continue;
        float value = slope(logits[id]) + inverse * sum;
        if (id == target) value += inverse * d_logprob;
        dlogits[id] = from_float<T>(value);
    }
}
KERNEL __launch_bounds__(1024, 1) head_backward_f32(HeadArguments a, HeadGradients g) { head_backward<float>(a, g); }
KERNEL __launch_bounds__(1024, 1) head_backward_bf16(HeadArguments a, HeadGradients g) { head_backward<bf16>(a, g); }
