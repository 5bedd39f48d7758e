// Samples one token per row from f32 logits, as the CPU backend does: logit bias, penalties, bitmask, suppressed tokens,
// temperature, min-p, top-k, top-p, one random number. The random number depends on the seed and the position alone. Several
// blocks per row find its largest logit, then its sums of weights; one block of 1024 threads per row does the rest with what
// they have found. The vocabulary is never sorted.
#include "select.cuh"

constexpr int SAMPLE_THREADS = 1024;
// Most tokens that are kept in shared memory after a first truncation.
constexpr int MAX_LISTED = 2048;
constexpr int MAX_TOP_LOGPROBS = 32;
// Chunks of a row, in one of which the quantile lies; a chunk has at most one token per thread.
constexpr int CHUNKS = 256;
// Threads of the blocks that share a row. A warp has whole chunks.
constexpr int PART_THREADS = 256;
// Most blocks that share a row.
constexpr int MAX_PARTS = 32;

enum SampleMode { MODE_SAMPLE = 0, MODE_GREEDY = 1, MODE_RECORDED = 2 };
enum SampleStatus { STATUS_OK = 0, STATUS_NOT_FINITE = 1, STATUS_NO_TOKEN = 2 };

// How a row is sampled. Lists are in `SampleArguments::words`: index of the first word, and number of entries.
struct SampleRow {
    int mode;
    // Row of the logits.
    int logits;
    unsigned seed_low, seed_high, position;
    unsigned recorded;
    float temperature, min_p, top_p;
    int top_k;
    float presence_penalty, frequency_penalty, repetition_penalty;
    int top_logprobs;
    // Whether something may be masked: reports a token that had no alternative.
    int constrained;
    // Whether any of the following changes a logit.
    int adjusts;
    // Pairs of token and bias (f32).
    int biases, bias_count;
    // Pairs of token and occurrences in the reply; every token of prompt and reply that a penalty applies to, once.
    int penalties, penalty_count;
    // Tokens that are not sampled unless nothing else is allowed, once each.
    int suppressed, suppressed_count;
    // Allowed tokens, one bit each; words beyond the last are zero. -1: all.
    int bitmask, bitmask_words;
};

struct SampleOutput {
    int status;
    unsigned id;
    float logprob, full_logprob, model_logprob;
    int forced;
    // The token whose logit is not finite, and the logit.
    unsigned bad_id;
    float bad_logit;
    unsigned top_ids[MAX_TOP_LOGPROBS];
    float top_logprobs[MAX_TOP_LOGPROBS];
};

// What one of the blocks that share a row has found: largest logit, the smallest token that has it, the smallest token whose
// logit is not finite, the number of finite logits; then the sums of weights at the row's temperature and at 1.
struct SamplePart {
    float largest;
    unsigned id, bad_id, open;
    unsigned long long sum, sum_at_one;
};

struct SampleArguments {
    // [rows, stride].
    const float* logits;
    int stride, vocab;
    const SampleRow* rows;
    const unsigned* words;
    // Scratch: [rows, stride] adjusted logits, and per row as many values as tokens can be suppressed.
    float* adjusted;
    float* saved;
    int saved_stride;
    SampleOutput* outputs;
    // [rows, count]. The count is a power of two up to MAX_PARTS.
    SamplePart* parts;
    int part_count;
    // [rows, count, PART_THREADS]: the key of each thread's largest logit.
    uint32_t* keys;
    // [rows, CHUNKS]: sums of weights at the row's temperature.
    unsigned long long* chunks;
};

DEVICE uint32_t rotate_left(uint32_t value, int by) { return value << by | value >> (32 - by); }
DEVICE void quarter_round(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
    a += b, d = rotate_left(d ^ a, 16);
    c += d, b = rotate_left(b ^ c, 12);
    a += b, d = rotate_left(d ^ a, 8);
    c += d, b = rotate_left(b ^ c, 7);
}

// The number in [0, 1) for a position of the reply: 64 bits of the ChaCha12 stream whose key is the seed followed by
// "clawhost token sampling".
DEVICE double uniform_at(uint32_t seed_low, uint32_t seed_high, uint32_t position) {
    const uint32_t initial[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, seed_low, seed_high,
                                  0x77616c63u /* claw */, 0x74736f68u /* host */, 0x6b6f7420u /*  tok */, 0x73206e65u /* en s */,
                                  0x6c706d61u /* ampl */, 0x00676e69u /* ing */, 2 * position / 16, 0u, 0u, 0u};
    uint32_t x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = initial[i];
    // Words of the stream beyond 2^32 blocks are not reached: a reply has fewer tokens.
    x[12] = uint32_t((2ull * position) / 16);
    uint32_t counter = x[12];
#pragma unroll 1
    for (int round = 0; round < 6; round++) {
        quarter_round(x[0], x[4], x[8], x[12]);
        quarter_round(x[1], x[5], x[9], x[13]);
        quarter_round(x[2], x[6], x[10], x[14]);
        quarter_round(x[3], x[7], x[11], x[15]);
        quarter_round(x[0], x[5], x[10], x[15]);
        quarter_round(x[1], x[6], x[11], x[12]);
        quarter_round(x[2], x[7], x[8], x[13]);
        quarter_round(x[3], x[4], x[9], x[14]);
    }
    int at = int((2ull * position) % 16);
    uint32_t words[2] = {0u, 0u};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t value = x[i] + (i == 12 ? counter : initial[i]);
        if (i == at) words[0] = value;
        if (i == at + 1) words[1] = value;
    }
    unsigned long long bits = (unsigned long long)(words[1]) << 32 | words[0];
    return double(bits >> 11) / 9007199254740992.;
}

// exp((logit - largest) / temperature), or 0 below e^-87 of the largest weight.
DEVICE float sample_weight(float logit, float largest, float inverse_temperature) {
    float exponent = (logit - largest) * inverse_temperature;
    return exponent < -87.f ? 0.f : expf(exponent);
}
DEVICE bool is_finite(float value) { return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u; }

struct SampleWorkspace {
    Histogram histogram;
    // Tokens that remain after a first truncation, in any order.
    uint32_t ids[MAX_LISTED];
    float weights[MAX_LISTED];
    unsigned listed;
    unsigned long long chunks[CHUNKS];
    float tops[32];
    uint32_t top_ids[32];
    unsigned bad_id, open;
    // What the thread that has the quantile tells the others.
    int first_beyond, last_open;
    unsigned long long found_before;
    unsigned long long pairs[MAX_TOP_LOGPROBS], sorted[MAX_TOP_LOGPROBS];
};

// Largest logit of a row and the smallest token that has it; each thread's own largest key; the smallest token whose
// logit is not finite, where -infinity counts only if the row is not masked; the number of finite logits.
struct RowMaximum {
    float largest;
    uint32_t id, own_key;
    unsigned bad_id, open;
    DEVICE void merge(float other, uint32_t other_id) {
        if (other > largest || (other == largest && other_id < id)) largest = other, id = other_id;
    }
};
// Of the tokens from `first` to `end`.
DEVICE RowMaximum row_maximum(SampleWorkspace& shared, const float* logits, int first, int end, bool masked) {
    RowMaximum own = {NEGATIVE_INFINITY, 0xffffffffu, 0u, 0u, 0u};
    __syncthreads();
    if (threadIdx.x == 0) shared.bad_id = 0xffffffffu, shared.open = 0;
    __syncthreads();
    int threads = int(blockDim.x);
    for (int i = first + int(threadIdx.x); i < end; i += 4 * threads) {
        float four[4];
#pragma unroll
        for (int u = 0; u < 4; u++) four[u] = i + u * threads < end ? logits[i + u * threads] : NEGATIVE_INFINITY;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            unsigned id = unsigned(i + u * threads);
            if (int(id) >= end) continue;
            if (is_finite(four[u])) {
                own.open++;
                if (four[u] > own.largest || own.id == 0xffffffffu) own.largest = four[u], own.id = id;
            } else if (!(masked && four[u] == NEGATIVE_INFINITY)) {
                atomicMin(&shared.bad_id, id);
            }
        }
    }
    own.own_key = own.id == 0xffffffffu ? 0u : ordered_key(own.largest);
    if (own.open) atomicAdd(&shared.open, own.open);
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(ALL_LANES, own.largest, offset);
        own.merge(other, __shfl_xor_sync(ALL_LANES, own.id, offset));
    }
    if (lane_id() == 0) shared.tops[warp_id()] = own.largest, shared.top_ids[warp_id()] = own.id;
    __syncthreads();
    for (int warp = 0; warp < threads / WARP; warp++) own.merge(shared.tops[warp], shared.top_ids[warp]);
    own.bad_id = shared.bad_id;
    own.open = shared.open;
    return own;
}

// What the blocks that share a row have found, in every thread; called by whole warps.
DEVICE SamplePart merge_parts(const SamplePart* parts, int count) {
    SamplePart own = {NEGATIVE_INFINITY, 0xffffffffu, 0xffffffffu, 0u, 0ull, 0ull};
    if (lane_id() < count) own = parts[lane_id()];
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        float largest = __shfl_xor_sync(ALL_LANES, own.largest, offset);
        uint32_t id = __shfl_xor_sync(ALL_LANES, own.id, offset);
        if (largest > own.largest || (largest == own.largest && id < own.id)) own.largest = largest, own.id = id;
        own.bad_id = min(own.bad_id, __shfl_xor_sync(ALL_LANES, own.bad_id, offset));
        own.open += __shfl_xor_sync(ALL_LANES, own.open, offset);
        own.sum += __shfl_xor_sync(ALL_LANES, own.sum, offset);
        own.sum_at_one += __shfl_xor_sync(ALL_LANES, own.sum_at_one, offset);
    }
    return own;
}

// Grid (part_count, rows).
KERNEL __launch_bounds__(PART_THREADS) sample_maxima(SampleArguments a) {
    __shared__ SampleWorkspace shared;
    int part = int(blockIdx.x), row = int(blockIdx.y);
    const float* logits = a.logits + size_t(a.rows[row].logits) * a.stride;
    int size = ceil_div(a.vocab, CHUNKS) * (CHUNKS / a.part_count);
    RowMaximum own = row_maximum(shared, logits, min(part * size, a.vocab), min((part + 1) * size, a.vocab), false);
    size_t at = size_t(row) * a.part_count + part;
    a.keys[at * PART_THREADS + threadIdx.x] = own.own_key;
    if (threadIdx.x == 0) a.parts[at] = SamplePart{own.largest, own.id, own.bad_id, own.open, 0ull, 0ull};
}

// Grid (part_count, rows), after `sample_maxima`. Sums are fixed-point numbers, so that they do not depend on their order.
KERNEL __launch_bounds__(PART_THREADS) sample_sums(SampleArguments a) {
    __shared__ unsigned long long sums[2][PART_THREADS / WARP];
    int part = int(blockIdx.x), row = int(blockIdx.y);
    const float* logits = a.logits + size_t(a.rows[row].logits) * a.stride;
    float inverse = 1.f / a.rows[row].temperature;
    SamplePart* parts = a.parts + size_t(row) * a.part_count;
    float largest = merge_parts(parts, a.part_count).largest;
    int size = ceil_div(a.vocab, CHUNKS), each = CHUNKS / a.part_count;
    unsigned long long all = 0, all_at_one = 0;
    for (int chunk = part * each + warp_id(); chunk < (part + 1) * each; chunk += PART_THREADS / WARP) {
        unsigned long long sum = 0;
        int first = chunk * size, end = min(first + size, a.vocab);
        for (int i = first + lane_id(); i < end; i += 4 * WARP) {
            float four[4];
#pragma unroll
            for (int u = 0; u < 4; u++) four[u] = i + u * WARP < end ? logits[i + u * WARP] : NEGATIVE_INFINITY;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                sum += to_fixed(sample_weight(four[u], largest, inverse));
                all_at_one += to_fixed(sample_weight(four[u], largest, 1.f));
            }
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (lane_id() == 0) a.chunks[size_t(row) * CHUNKS + chunk] = sum;
        all += sum;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) all_at_one += __shfl_xor_sync(ALL_LANES, all_at_one, offset);
    if (lane_id() == 0) sums[0][warp_id()] = all, sums[1][warp_id()] = all_at_one;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < PART_THREADS / WARP; warp++) all += sums[0][warp], all_at_one += sums[1][warp];
    parts[part].sum = all;
    parts[part].sum_at_one = all_at_one;
}

// The key that at least `count` tokens reach, from the keys of different tokens that `visit` has; 0 where they say nothing.
template <class Visit> DEVICE uint32_t floor_key(SampleWorkspace& shared, int count, Visit visit) {
    unsigned long long above, at;
    return select_key<false>(shared.histogram, (unsigned long long)(count), above, at, visit);
}

// The first thread up to which the masses of the block, in the order of its threads, exceed `target`; the last one with
// any mass if rounding puts the target past all. `before` becomes what the threads before it have, and is added to theirs.
DEVICE int find_quantile(SampleWorkspace& shared, unsigned long long mass, unsigned long long& before, double target) {
    unsigned long long until = mass;
#pragma unroll
    for (int offset = 1; offset < WARP; offset <<= 1) {
        unsigned long long other = __shfl_up_sync(ALL_LANES, until, offset);
        if (lane_id() >= offset) until += other;
    }
    __syncthreads();
    if (lane_id() == 31) shared.histogram.warp_sums[warp_id()] = until;
    if (threadIdx.x == 0) shared.first_beyond = SAMPLE_THREADS, shared.last_open = 0;
    __syncthreads();
    unsigned long long start = before;
    for (int warp = 0; warp < warp_id(); warp++) start += shared.histogram.warp_sums[warp];
    int thread = int(threadIdx.x);
    if (mass > 0) {
        atomicMax(&shared.last_open, thread);
        if (double(start + until) > target) atomicMin(&shared.first_beyond, thread);
    }
    __syncthreads();
    int found = shared.first_beyond < SAMPLE_THREADS ? shared.first_beyond : shared.last_open;
    if (thread == found) shared.found_before = start + until - mass;
    __syncthreads();
    before = shared.found_before;
    return found;
}

// A distribution over the tokens of a row, truncated step by step.
struct Truncated {
    SampleWorkspace& shared;
    const float* logits;
    int vocab;
    float largest, inverse_temperature;
    // Tokens with a smaller weight are gone, as are those beyond the cut.
    float least;
    Cut cut;
    // Whether all remaining tokens are in the list of shared memory.
    bool listed;

    DEVICE bool keeps(float weight, uint32_t id) const {
        return weight > 0.f && weight >= least && cut.keeps(__float_as_uint(weight), id);
    }
    // Calls `f(key, mass, id)` for the remaining tokens of this thread, or only for those of about this weight and more. The
    // key of a weight is its bits.
    template <class F> DEVICE void visit(F f, float at_least = 0.f) const {
        if (listed) {
            for (unsigned i = threadIdx.x; i < shared.listed; i += SAMPLE_THREADS)
                if (keeps(shared.weights[i], shared.ids[i])) f(__float_as_uint(shared.weights[i]), to_fixed(shared.weights[i]), shared.ids[i]);
            return;
        }
        // Most tokens need no exponential: what remains is decided by the exact weight.
        float lowest = logf(fmaxf(at_least, least)) - 0.01f;
        for (int i = int(threadIdx.x); i < vocab; i += 4 * SAMPLE_THREADS) {
            float four[4];
#pragma unroll
            for (int u = 0; u < 4; u++) four[u] = i + u * SAMPLE_THREADS < vocab ? logits[i + u * SAMPLE_THREADS] : NEGATIVE_INFINITY;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                if ((four[u] - largest) * inverse_temperature < lowest) continue;
                float weight = sample_weight(four[u], largest, inverse_temperature);
                uint32_t id = uint32_t(i + u * SAMPLE_THREADS);
                if (keeps(weight, id)) f(__float_as_uint(weight), to_fixed(weight), id);
            }
        }
    }
    DEVICE unsigned long long total() const {
        unsigned long long sum = 0;
        visit([&](uint32_t, unsigned long long mass, uint32_t) { sum += mass; });
        return block_sum(shared.histogram, sum);
    }
    // Lists the tokens of at least this weight, of which the following steps need no others.
    DEVICE void list(float at_least) {
        __syncthreads();
        if (threadIdx.x == 0) shared.listed = 0;
        __syncthreads();
        visit([&](uint32_t key, unsigned long long, uint32_t id) {
            if (__uint_as_float(key) < at_least) return;
            unsigned at = atomicAdd(&shared.listed, 1u);
            if (at < MAX_LISTED) shared.ids[at] = id, shared.weights[at] = __uint_as_float(key);
        }, at_least);
        __syncthreads();
        listed = shared.listed <= MAX_LISTED;
    }
    // The token at quantile `unit` of the remaining tokens in the order of their ids; `chunks` has the sums of all chunks, or
    // is null.
    DEVICE uint32_t token_at(double unit, unsigned long long total, const unsigned long long* chunks) const {
        int size = ceil_div(vocab, CHUNKS), thread = int(threadIdx.x);
        auto mass_of = [&](int id) {
            if (id >= vocab) return 0ull;
            float weight = sample_weight(logits[id], largest, inverse_temperature);
            return keeps(weight, uint32_t(id)) ? to_fixed(weight) : 0ull;
        };
        if (!chunks && listed) {
            __syncthreads();
            for (int i = thread; i < CHUNKS; i += SAMPLE_THREADS) shared.chunks[i] = 0;
            __syncthreads();
            visit([&](uint32_t, unsigned long long mass, uint32_t id) { atomicAdd(&shared.chunks[int(id) / size], mass); });
        } else if (!chunks) {
            for (int chunk = warp_id(); chunk < CHUNKS; chunk += SAMPLE_THREADS / WARP) {
                unsigned long long sum = 0;
#pragma unroll 4
                for (int i = lane_id(); i < size; i += WARP) sum += mass_of(chunk * size + i);
#pragma unroll
                for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
                if (lane_id() == 0) shared.chunks[chunk] = sum;
            }
        }
        __syncthreads();
        double target = unit * double(total);
        unsigned long long mass = thread >= CHUNKS ? 0ull : chunks ? chunks[thread] : shared.chunks[thread], before = 0;
        int first = find_quantile(shared, mass, before, target) * size;
        mass = thread < size ? mass_of(first + thread) : 0ull;
        return uint32_t(first + find_quantile(shared, mass, before, target));
    }
};

// Copies the row and applies bias, penalties and masks to the copy.
DEVICE void adjust_logits(const SampleArguments& a, const SampleRow& row, const float* logits, float* adjusted, float* saved) {
    for (int i = int(threadIdx.x); i < a.vocab; i += SAMPLE_THREADS) adjusted[i] = logits[i];
    __syncthreads();
    for (int i = int(threadIdx.x); i < row.bias_count; i += SAMPLE_THREADS) {
        unsigned id = a.words[row.biases + 2 * i];
        if (id < unsigned(a.vocab)) atomicAdd(&adjusted[id], __uint_as_float(a.words[row.biases + 2 * i + 1]));
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < row.penalty_count; i += SAMPLE_THREADS) {
        unsigned id = a.words[row.penalties + 2 * i], count = a.words[row.penalties + 2 * i + 1];
        if (id >= unsigned(a.vocab)) continue;
        float logit = adjusted[id];
        if (row.repetition_penalty != 1.f) logit = logit > 0.f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
        if (count > 0) logit -= row.presence_penalty + row.frequency_penalty * float(count);
        adjusted[id] = logit;
    }
    __syncthreads();
    if (row.bitmask >= 0) {
        for (int i = int(threadIdx.x); i < a.vocab; i += SAMPLE_THREADS) {
            unsigned word = i / 32 < row.bitmask_words ? a.words[row.bitmask + i / 32] : 0u;
            if (!(word >> (i % 32) & 1u)) adjusted[i] = NEGATIVE_INFINITY;
        }
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < row.suppressed_count; i += SAMPLE_THREADS) {
        unsigned id = a.words[row.suppressed + i];
        if (id >= unsigned(a.vocab)) continue;
        saved[i] = adjusted[id];
        adjusted[id] = NEGATIVE_INFINITY;
    }
    __syncthreads();
}

DEVICE float logprob_of(float logit, float largest, float temperature, double total) {
    return float(double(logit - largest) / double(temperature) - log(total));
}

KERNEL __launch_bounds__(SAMPLE_THREADS, 1) sample(SampleArguments a) {
    __shared__ SampleWorkspace shared;
    SampleRow row = a.rows[blockIdx.x];
    SampleOutput& output = a.outputs[blockIdx.x];
    const float* logits = a.logits + size_t(row.logits) * a.stride;
    auto fail = [&](int status, unsigned id, float logit) {
        if (threadIdx.x == 0) output.status = status, output.bad_id = id, output.bad_logit = logit;
    };
    SamplePart model = merge_parts(a.parts + size_t(blockIdx.x) * a.part_count, a.part_count);
    RowMaximum source = {model.largest, model.id, 0u, model.bad_id, model.open};
    if (model.bad_id != 0xffffffffu) return fail(STATUS_NOT_FINITE, model.bad_id, logits[model.bad_id]);
    const float* adjusted = logits;
    if (row.adjusts) {
        float* own = a.adjusted + size_t(blockIdx.x) * a.stride;
        float* saved = a.saved + size_t(blockIdx.x) * a.saved_stride;
        adjust_logits(a, row, logits, own, saved);
        source = row_maximum(shared, own, 0, a.vocab, true);
        if (source.open == 0 && row.suppressed_count > 0) {
            // A constraint that allows nothing else takes precedence over suppressed tokens.
            for (int i = int(threadIdx.x); i < row.suppressed_count; i += SAMPLE_THREADS)
                if (a.words[row.suppressed + i] < unsigned(a.vocab)) own[a.words[row.suppressed + i]] = saved[i];
            __syncthreads();
            source = row_maximum(shared, own, 0, a.vocab, true);
        }
        if (source.bad_id != 0xffffffffu) return fail(STATUS_NOT_FINITE, source.bad_id, own[source.bad_id]);
        if (source.open == 0) return fail(STATUS_NO_TOKEN, 0, 0.f);
        adjusted = own;
    }

    // The largest keys of different tokens of the model's logits.
    auto visit_keys = [&](auto f) {
        const uint32_t* keys = a.keys + size_t(blockIdx.x) * a.part_count * PART_THREADS;
        for (int i = int(threadIdx.x); i < a.part_count * PART_THREADS; i += SAMPLE_THREADS) f(keys[i], 1ull, uint32_t(i));
    };
    float inverse = 1.f / row.temperature;
    uint32_t id = row.recorded;
    float logprob = 0.f;
    if (row.mode == MODE_GREEDY) id = source.id;
    if (row.mode == MODE_SAMPLE) {
        Truncated rest = {shared, adjusted, a.vocab, source.largest, inverse, row.min_p > 0.f ? row.min_p : 0.f, KEEP_ALL, false};
        unsigned long long total = model.sum;
        bool by_count = row.top_k > 0 && row.top_k < a.vocab, by_mass = row.top_p < 1.f;
        if (by_count) {
            uint32_t floor = row.adjusts ? floor_key(shared, row.top_k, [&](auto f) { f(source.own_key, 1ull, threadIdx.x); })
                                         : floor_key(shared, row.top_k, visit_keys);
            if (floor) rest.list(sample_weight(key_value(floor), source.largest, inverse));
            rest.cut = select_count(shared.histogram, row.top_k, [&](auto f) { rest.visit(f); });
        }
        if (by_count || rest.least > 0.f || row.adjusts) total = rest.total();
        if (by_mass) {
            // Tokens below this weight together have less than what is truncated, so none of them is kept.
            if (!rest.listed) rest.list(float(double(1.f - row.top_p) * from_fixed(total) / double(a.vocab)));
            unsigned long long target = (unsigned long long)(ceil(double(row.top_p) * double(total)));
            Cut cut = select_mass(shared.histogram, target, [&](auto f) { rest.visit(f); });
            // What the previous cut removed has a smaller key or is an equal key with a larger id.
            if (cut.key > rest.cut.key || (cut.key == rest.cut.key && cut.last_id < rest.cut.last_id)) rest.cut = cut;
            total = rest.total();
        }
        bool is_whole = !row.adjusts && !by_count && !by_mass && rest.least == 0.f;
        const unsigned long long* chunks = is_whole ? a.chunks + size_t(blockIdx.x) * CHUNKS : nullptr;
        id = rest.token_at(uniform_at(row.seed_low, row.seed_high, row.position), total, chunks);
        logprob = logprob_of(adjusted[id], source.largest, row.temperature, from_fixed(total));
    }
    if (threadIdx.x == 0) {
        bool known = id < unsigned(a.vocab);
        float logit = known ? logits[id] : POSITIVE_INFINITY - POSITIVE_INFINITY;
        output.status = STATUS_OK;
        output.id = id;
        output.logprob = logprob;
        output.full_logprob = logprob_of(logit, model.largest, row.temperature, from_fixed(model.sum));
        output.model_logprob = logprob_of(logit, model.largest, 1.f, from_fixed(model.sum_at_one));
        output.forced = row.constrained && source.open == 1;
    }
    int count = min(row.top_logprobs, a.vocab);
    if (count == 0) return;
    uint32_t floor = floor_key(shared, count, visit_keys);
    auto visit = [&](auto f) {
        for (int i = int(threadIdx.x); i < a.vocab; i += SAMPLE_THREADS) {
            uint32_t key = ordered_key(logits[i]);
            if (key >= floor) f(key, 1ull, uint32_t(i));
        }
    };
    Cut cut = select_count(shared.histogram, count, visit);
    __syncthreads();
    if (threadIdx.x == 0) shared.listed = 0;
    __syncthreads();
    visit([&](uint32_t key, unsigned long long, uint32_t id) {
        if (cut.keeps(key, id)) shared.pairs[atomicAdd(&shared.listed, 1u)] = make_pair(key, id);
    });
    sort_pairs(shared.pairs, shared.sorted, count);
    for (int i = int(threadIdx.x); i < count; i += SAMPLE_THREADS) {
        output.top_ids[i] = pair_id(shared.sorted[i]);
        output.top_logprobs[i] = logprob_of(key_value(pair_key(shared.sorted[i])), model.largest, 1.f, from_fixed(model.sum_at_one));
    }
}
