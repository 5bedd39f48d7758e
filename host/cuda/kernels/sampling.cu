// Samples one token per row from f32 logits, as the CPU backend does: logit bias, penalties, bitmask, suppressed tokens,
// temperature, min-p, top-k, top-p, one random number. The random number depends on the seed and the position alone. One
// block of 1024 threads per row; the vocabulary is never sorted.
#include "select.cuh"

constexpr int SAMPLE_THREADS = 1024;
// Most tokens that are kept in shared memory after a first truncation.
constexpr int MAX_LISTED = 2048;
constexpr int MAX_TOP_LOGPROBS = 32;
// Chunks of a row in which the quantile is searched.
constexpr int CHUNKS = 128;

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
    uint32_t chosen;
    unsigned long long pairs[MAX_TOP_LOGPROBS], sorted[MAX_TOP_LOGPROBS];
};

// Largest logit of a row and the smallest token that has it; each thread's own largest key; the smallest token whose
// logit is not finite, where -infinity counts only if the row is not masked; the number of finite logits.
struct RowMaximum {
    float largest;
    uint32_t id, own_key;
    unsigned bad_id, open;
};
DEVICE RowMaximum row_maximum(SampleWorkspace& shared, const float* logits, int vocab, bool masked) {
    float largest = NEGATIVE_INFINITY;
    uint32_t id = 0xffffffffu;
    unsigned open = 0;
    __syncthreads();
    if (threadIdx.x == 0) shared.bad_id = 0xffffffffu, shared.open = 0;
    __syncthreads();
    for (int i = int(threadIdx.x); i < vocab; i += SAMPLE_THREADS) {
        float logit = logits[i];
        if (is_finite(logit)) {
            open++;
            if (logit > largest || id == 0xffffffffu) largest = logit, id = uint32_t(i);
        } else if (!(masked && logit == NEGATIVE_INFINITY)) {
            atomicMin(&shared.bad_id, unsigned(i));
        }
    }
    uint32_t own_key = id == 0xffffffffu ? 0u : ordered_key(largest);
    if (open) atomicAdd(&shared.open, open);
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(ALL_LANES, largest, offset);
        uint32_t other_id = __shfl_xor_sync(ALL_LANES, id, offset);
        if (other > largest || (other == largest && other_id < id)) largest = other, id = other_id;
    }
    if (lane_id() == 0) shared.tops[warp_id()] = largest, shared.top_ids[warp_id()] = id;
    __syncthreads();
    for (int warp = 0; warp < SAMPLE_THREADS / WARP; warp++) {
        float other = shared.tops[warp];
        uint32_t other_id = shared.top_ids[warp];
        if (other > largest || (other == largest && other_id < id)) largest = other, id = other_id;
    }
    return RowMaximum{largest, id, own_key, shared.bad_id, shared.open};
}

// The key that at least `count` tokens reach, from each thread's own largest key; 0 where that says nothing.
DEVICE uint32_t floor_key(SampleWorkspace& shared, uint32_t own_key, int count) {
    if (count > SAMPLE_THREADS) return 0;
    unsigned long long above, at;
    return select_key<false>(shared.histogram, (unsigned long long)(count), above, at, [&](auto f) { f(own_key, 1ull, threadIdx.x); });
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
    // Calls `f(key, mass, id)` for the remaining tokens of this thread. The key of a weight is its bits.
    template <class F> DEVICE void visit(F f) const {
        if (listed) {
            for (unsigned i = threadIdx.x; i < shared.listed; i += SAMPLE_THREADS)
                if (keeps(shared.weights[i], shared.ids[i])) f(__float_as_uint(shared.weights[i]), to_fixed(shared.weights[i]), shared.ids[i]);
            return;
        }
        for (int i = int(threadIdx.x); i < vocab; i += SAMPLE_THREADS) {
            float weight = sample_weight(logits[i], largest, inverse_temperature);
            if (keeps(weight, uint32_t(i))) f(__float_as_uint(weight), to_fixed(weight), uint32_t(i));
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
        });
        __syncthreads();
        listed = shared.listed <= MAX_LISTED;
    }
    // The token at quantile `unit` of the remaining tokens in the order of their ids.
    DEVICE uint32_t token_at(double unit, unsigned long long total) const {
        int size = ceil_div(vocab, CHUNKS);
        auto mass_of = [&](int id) {
            if (id >= vocab) return 0ull;
            float weight = sample_weight(logits[id], largest, inverse_temperature);
            return keeps(weight, uint32_t(id)) ? to_fixed(weight) : 0ull;
        };
        for (int chunk = warp_id(); chunk < CHUNKS; chunk += SAMPLE_THREADS / WARP) {
            unsigned long long sum = 0;
            for (int i = lane_id(); i < size; i += WARP) sum += mass_of(chunk * size + i);
#pragma unroll
            for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
            if (lane_id() == 0) shared.chunks[chunk] = sum;
        }
        __syncthreads();
        double target = unit * double(total);
        if (warp_id() == 0) {
            // The chunk that contains the quantile; the last one with any weight if rounding puts it past all.
            int chunk = 0;
            unsigned long long before = 0, reached = 0;
#pragma unroll 1
            for (int i = 0; i < CHUNKS; i++) {
                if (shared.chunks[i] == 0) continue;
                chunk = i, before = reached;
                reached += shared.chunks[i];
                if (double(reached) > target) break;
            }
            uint32_t last = 0;
            for (int from = 0; from < size; from += WARP) {
                unsigned long long mass = from + lane_id() < size ? mass_of(chunk * size + from + lane_id()) : 0ull, until = mass;
#pragma unroll
                for (int offset = 1; offset < WARP; offset <<= 1) {
                    unsigned long long other = __shfl_up_sync(ALL_LANES, until, offset);
                    if (lane_id() >= offset) until += other;
                }
                unsigned beyond = __ballot_sync(ALL_LANES, mass > 0 && double(before + until) > target);
                unsigned any = __ballot_sync(ALL_LANES, mass > 0);
                if (beyond) {
                    last = uint32_t(chunk * size + from + __ffs(beyond) - 1);
                    break;
                }
                if (any) last = uint32_t(chunk * size + from + 31 - __clz(int(any)));
                before += __shfl_sync(ALL_LANES, until, 31);
            }
            if (lane_id() == 0) shared.chosen = last;
        }
        __syncthreads();
        return shared.chosen;
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
    RowMaximum model = row_maximum(shared, logits, a.vocab, false), source = model;
    if (model.bad_id != 0xffffffffu) return fail(STATUS_NOT_FINITE, model.bad_id, logits[model.bad_id]);
    const float* adjusted = logits;
    if (row.adjusts) {
        float* own = a.adjusted + size_t(blockIdx.x) * a.stride;
        float* saved = a.saved + size_t(blockIdx.x) * a.saved_stride;
        adjust_logits(a, row, logits, own, saved);
        source = row_maximum(shared, own, a.vocab, true);
        if (source.open == 0 && row.suppressed_count > 0) {
            // A constraint that allows nothing else takes precedence over suppressed tokens.
            for (int i = int(threadIdx.x); i < row.suppressed_count; i += SAMPLE_THREADS)
                if (a.words[row.suppressed + i] < unsigned(a.vocab)) own[a.words[row.suppressed + i]] = saved[i];
            __syncthreads();
            source = row_maximum(shared, own, a.vocab, true);
        }
        if (source.bad_id != 0xffffffffu) return fail(STATUS_NOT_FINITE, source.bad_id, own[source.bad_id]);
        if (source.open == 0) return fail(STATUS_NO_TOKEN, 0, 0.f);
        adjusted = own;
    }

    float inverse = 1.f / row.temperature;
    unsigned long long sum = 0, sum_at_one = 0;
    for (int i = int(threadIdx.x); i < a.vocab; i += SAMPLE_THREADS) {
        sum += to_fixed(sample_weight(logits[i], model.largest, inverse));
        sum_at_one += to_fixed(sample_weight(logits[i], model.largest, 1.f));
    }
    sum = block_sum(shared.histogram, sum);
    sum_at_one = block_sum(shared.histogram, sum_at_one);

    uint32_t id = row.recorded;
    float logprob = 0.f;
    if (row.mode == MODE_GREEDY) id = source.id;
    if (row.mode == MODE_SAMPLE) {
        Truncated rest = {shared, adjusted, a.vocab, source.largest, inverse, row.min_p > 0.f ? row.min_p : 0.f, KEEP_ALL, false};
        unsigned long long total = sum;
        bool by_count = row.top_k > 0 && row.top_k < a.vocab, by_mass = row.top_p < 1.f;
        if (by_count) {
            uint32_t floor = floor_key(shared, source.own_key, row.top_k);
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
        id = rest.token_at(uniform_at(row.seed_low, row.seed_high, row.position), total);
        logprob = logprob_of(adjusted[id], source.largest, row.temperature, from_fixed(total));
    }
    if (threadIdx.x == 0) {
        bool known = id < unsigned(a.vocab);
        float logit = known ? logits[id] : POSITIVE_INFINITY - POSITIVE_INFINITY;
        output.status = STATUS_OK;
        output.id = id;
        output.logprob = logprob;
        output.full_logprob = logprob_of(logit, model.largest, row.temperature, from_fixed(sum));
        output.model_logprob = logprob_of(logit, model.largest, 1.f, from_fixed(sum_at_one));
        output.forced = row.constrained && source.open == 1;
    }
    int count = min(row.top_logprobs, a.vocab);
    if (count == 0) return;
    uint32_t floor = floor_key(shared, model.own_key, count);
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
        output.top_logprobs[i] = logprob_of(key_value(pair_key(shared.sorted[i])), model.largest, 1.f, from_fixed(sum_at_one));
    }
}
