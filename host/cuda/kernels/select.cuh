// Selection of the largest keys of a row without sorting it: a block finds the smallest kept key digit by digit, with a
// histogram per digit.
#pragma once
#include "common.cuh"

constexpr int DIGITS = 2048;

// Fixed-point weights, so that a sum does not depend on its order. A weight is at most 1, and 2^18 of them fit.
constexpr double FIXED_ONE = 17592186044416.; // 2^44
DEVICE unsigned long long to_fixed(float weight) { return (unsigned long long)(weight * float(FIXED_ONE)); }
DEVICE double from_fixed(unsigned long long sum) { return double(sum) / FIXED_ONE; }

// A key that orders like the float; 0 is no float.
DEVICE uint32_t ordered_key(float value) {
    uint32_t bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float key_value(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

struct Histogram {
    unsigned long long masses[DIGITS];
    // What the thread that found the digit tells the others.
    int digit;
    unsigned long long above, at;
    unsigned long long warp_sums[32];
};

// The sum over the block, in every thread.
DEVICE unsigned long long block_sum(Histogram& histogram, unsigned long long value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    __syncthreads();
    if (lane_id() == 0) histogram.warp_sums[warp_id()] = value;
    __syncthreads();
    unsigned long long all = lane_id() < int(blockDim.x >> 5) ? histogram.warp_sums[lane_id()] : 0ull;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) all += __shfl_xor_sync(ALL_LANES, all, offset);
    return all;
}

// The largest keys of a row: those above `key`, and those equal to it up to an id.
struct Cut {
    uint32_t key, last_id;
    DEVICE bool keeps(uint32_t other, uint32_t id) const { return other > key || (other == key && id <= last_id); }
};
#define KEEP_ALL (Cut{1u, 0xffffffffu})

// The largest key for which the keys at or above it reach `target`, in number or, BY_MASS, in the sum of their masses.
// `visit(f)` calls `f(key, mass, id)` for the keys of this thread; key 0 does not count. Sets `above` to what the keys
// above reach and `at` to what the keys equal to it have. Returns 0 where all keys together do not reach the target.
template <bool BY_MASS, class Visit>
DEVICE uint32_t select_key(Histogram& histogram, unsigned long long target, unsigned long long& above, unsigned long long& at, Visit visit) {
    uint32_t prefix = 0, mask = 0;
    above = at = 0;
#pragma unroll 1
    for (int level = 0; level < 3; level++) {
        int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
        uint32_t digit_mask = level == 2 ? 0x3ffu : 0x7ffu;
        __syncthreads();
        for (int i = int(threadIdx.x); i < DIGITS; i += int(blockDim.x)) histogram.masses[i] = 0;
        if (threadIdx.x == 0) histogram.digit = -1;
        __syncthreads();
        visit([&](uint32_t key, unsigned long long mass, uint32_t) {
            if (key != 0 && (key & mask) == prefix) atomicAdd(&histogram.masses[(key >> shift) & digit_mask], BY_MASS ? mass : 1ull);
        });
        __syncthreads();
        // Every lane of the first warp takes consecutive digits, the highest first.
        if (warp_id() == 0) {
            constexpr int EACH = DIGITS / WARP;
            int top = DIGITS - 1 - lane_id() * EACH;
            unsigned long long own = 0;
#pragma unroll 4
            for (int i = 0; i < EACH; i++) own += histogram.masses[top - i];
            unsigned long long until = own;
#pragma unroll
            for (int offset = 1; offset < WARP; offset <<= 1) {
                unsigned long long other = __shfl_up_sync(ALL_LANES, until, offset);
                if (lane_id() >= offset) until += other;
            }
            unsigned long long reached = above + until - own;
            if (reached < target && reached + own >= target) {
#pragma unroll 1
                for (int i = 0; i < EACH; i++) {
                    unsigned long long mass = histogram.masses[top - i];
                    if (reached + mass >= target) {
                        histogram.digit = top - i;
                        histogram.above = reached;
                        histogram.at = mass;
                        break;
                    }
                    reached += mass;
                }
            }
        }
        __syncthreads();
        if (histogram.digit < 0) return 0;
        above = histogram.above;
        at = histogram.at;
        prefix |= uint32_t(histogram.digit) << shift;
        mask |= digit_mask << shift;
    }
    return prefix;
}

// Of the keys equal to `key`, keeps the `count` with the smallest ids.
template <class Visit> DEVICE Cut cut_ties(Histogram& histogram, uint32_t key, unsigned long long count, Visit visit) {
    unsigned long long above, at;
    uint32_t last = select_key<false>(histogram, count, above, at, [&](auto add) {
        visit([&](uint32_t other, unsigned long long mass, uint32_t id) {
            if (other == key) add(~id, mass, id);
        });
    });
    return Cut{key, ~last};
}

// The `count` largest keys; of equal ones those with the smallest ids.
template <class Visit> DEVICE Cut select_count(Histogram& histogram, int count, Visit visit) {
    unsigned long long above, at, target = (unsigned long long)(count);
    uint32_t key = select_key<false>(histogram, target, above, at, visit);
    if (key == 0) return KEEP_ALL;
    if (above + at == target) return Cut{key, 0xffffffffu};
    return cut_ties(histogram, key, target - above, visit);
}

// The fewest largest keys whose masses reach `target`. Equal keys have equal masses.
template <class Visit> DEVICE Cut select_mass(Histogram& histogram, unsigned long long target, Visit visit) {
    unsigned long long above, at;
    uint32_t key = select_key<true>(histogram, target, above, at, visit);
    if (key == 0) return KEEP_ALL;
    unsigned long long mass = to_fixed(__uint_as_float(key));
    unsigned long long needed = (target - above + mass - 1) / mass;
    if (needed * mass >= at) return Cut{key, 0xffffffffu};
    return cut_ties(histogram, key, needed, visit);
}

// Sorts `count` pairs of key and id, largest key first and of equal ones the smallest id first; `sorted` is not `pairs`.
// A pair is key << 32 | ~id.
DEVICE void sort_pairs(const unsigned long long* pairs, unsigned long long* sorted, int count) {
    __syncthreads();
    for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
        int rank = 0;
        for (int j = 0; j < count; j++) rank += pairs[j] > pairs[i];
        sorted[rank] = pairs[i];
    }
    __syncthreads();
}
DEVICE unsigned long long make_pair(uint32_t key, uint32_t id) { return (unsigned long long)(key) << 32 | uint32_t(~id); }
DEVICE uint32_t pair_key(unsigned long long pair) { return uint32_t(pair >> 32); }
DEVICE uint32_t pair_id(unsigned long long pair) { return ~uint32_t(pair); }
