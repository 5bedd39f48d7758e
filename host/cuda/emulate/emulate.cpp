// The scheduler of the fibers, and the entry points of the emulated library: `emulate_launch`, `emulate_multiply`.

#include "emulate.h"

#include <functional>
#include <map>
#include <string>
#include <sys/mman.h>

#include "../kernels/kernels.cu"

#if defined(__x86_64__)
// Saves the registers that a function must preserve on the current stack, and continues on another one.
asm(R"(
.text
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulate_switch, .-emulate_switch
)");
extern "C" void emulate_switch(void** save, void* to);
#else
#include <ucontext.h>
#endif

namespace emulate {
namespace {

constexpr size_t STACK = 256 << 10;
constexpr size_t GUARD = 4096;

thread_local Block* current_block;
thread_local Fiber* current_fiber;
thread_local std::vector<Fiber> fibers;
thread_local const std::function<void()>* body;
#if defined(__x86_64__)
thread_local void* scheduler;
#else
thread_local ucontext_t scheduler;
thread_local std::vector<ucontext_t> contexts;
#endif

void release(Barrier& barrier) {
    if (barrier.arrived == barrier.expected) {
        barrier.arrived = 0;
        barrier.generation++;
    }
}

// A thread that has ended no longer takes part in barriers.
void leave(Barrier& barrier) {
    barrier.expected--;
    if (barrier.expected > 0) release(barrier);
}

void run() {
    (*body)();
    Fiber& own = fiber();
    own.finished = true;
    leave(warp().barrier);
    leave(block().barrier);
    yield();
    abort();
}

// Memory of a thread of the operating system, given back when it ends.
struct Mapping {
    unsigned char* memory = nullptr;
    size_t bytes = 0;
    unsigned char* of(size_t wanted) {
        if (!memory) {
            void* mapped = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (mapped == MAP_FAILED) {
                perror("emulate: memory");
                abort();
            }
            memory = static_cast<unsigned char*>(mapped);
            bytes = wanted;
        }
        return memory;
    }
    ~Mapping() {
        if (memory) munmap(memory, bytes);
    }
};

// The most threads of a block.
constexpr size_t MAX_THREADS = 1024;
thread_local Mapping stacks;
unsigned char* stack(size_t index) { return stacks.of(MAX_THREADS * STACK) + index * STACK; }

void start(size_t index) {
    Fiber& fiber = fibers[index];
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack(index) + STACK);
    // The stack is aligned to 16 bytes before a call, so to 8 after it.
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&run);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
#else
    ucontext_t& context = contexts[index];
    getcontext(&context);
    context.uc_stack.ss_sp = stack(index);
    context.uc_stack.ss_size = STACK;
    makecontext(&context, &run, 0);
    fiber.stack_pointer = &context;
#endif
}

void enter(size_t index) {
    current_fiber = &fibers[index];
#if defined(__x86_64__)
    emulate_switch(&scheduler, current_fiber->stack_pointer);
#else
    swapcontext(&scheduler, &contexts[index]);
#endif
}

// Memory that ends at a page that cannot be accessed.
unsigned char* guarded(size_t bytes) {
    constexpr size_t CAPACITY = 256 << 10;
    static thread_local Mapping mapping;
    bool is_new = !mapping.memory;
    unsigned char* memory = mapping.of(CAPACITY + GUARD);
    if (is_new && mprotect(memory + CAPACITY, GUARD, PROT_NONE) != 0) abort();
    bytes = (bytes + 127) / 128 * 128;
    if (bytes > CAPACITY) abort();
    unsigned char* from = memory + CAPACITY - bytes;
    // Not a number in both types, so that a value that nobody has written is seen in the result.
    memset(from, 0xff, bytes);
    return from;
}

// Returns how many threads have waited for the kernels ahead.
unsigned run_block(uint3 index, dim3 grid, dim3 size, unsigned shared_bytes, bool reversed) {
    unsigned threads = size.x;
    Block block{};
    block.index = index;
    block.size = size;
    block.grid = grid;
    block.barrier = {threads, 0, 0};
    block.warps.resize((threads + 31) / 32);
    for (size_t warp = 0; warp < block.warps.size(); warp++)
        block.warps[warp].barrier = {std::min(32u, threads - 32 * unsigned(warp)), 0, 0};
    block.dynamic_shared = shared_bytes ? guarded(shared_bytes) : nullptr;
    current_block = &block;
    fibers.resize(threads);
#if !defined(__x86_64__)
    contexts.resize(threads);
#endif
    for (unsigned i = 0; i < threads; i++) {
        fibers[i].thread = {i, 0, 0};
        fibers[i].finished = false;
        fibers[i].group = 0;
        fibers[i].copies.clear();
        start(i);
    }
    unsigned left = threads;
    while (left > 0) {
        for (unsigned at = 0; at < threads; at++) {
            unsigned i = reversed ? threads - 1 - at : at;
            if (fibers[i].finished) continue;
            enter(i);
            if (fibers[i].finished) left--;
        }
    }
    return block.waited;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

using Entry = std::function<void(void**)>;
template <class... A> Entry entry(void (*kernel)(A...)) {
    return [kernel](void** arguments) { call(kernel, arguments, std::index_sequence_for<A...>{}); };
}

const std::map<std::string, Entry>& kernels() {
#define ENTRY(name) {#name, entry(&name)}
#define ENTRIES(name) ENTRY(name##_f32), ENTRY(name##_bf16)
    static const std::map<std::string, Entry> all = {
        ENTRIES(rms_norm), ENTRIES(rms_norm_backward), ENTRIES(gain_backward), ENTRY(gain_backward_residual_bf16),
        ENTRY(rope_angles), ENTRIES(finish_qkv), ENTRIES(finish_qkv_parts), ENTRIES(finish_qkv_backward),
        ENTRIES(finish_qkv_backward_parts),
        ENTRIES(embed), ENTRIES(gather_rows), ENTRIES(scatter_rows), ENTRIES(add_bias), ENTRIES(bias_backward),
        ENTRIES(swiglu), ENTRIES(swiglu_backward), ENTRIES(embed_backward),
        ENTRY(attention_prefill_paged_64), ENTRY(attention_prefill_paged_128),
        ENTRY(attention_prefill_packed_64), ENTRY(attention_prefill_packed_128),
        ENTRY(attention_decode_64), ENTRY(attention_decode_128),
        ENTRY(attention_dkdv_64), ENTRY(attention_dkdv_128), ENTRY(attention_dq_64), ENTRY(attention_dq_128),
        ENTRIES(attention_delta), ENTRIES(attention_general_paged), ENTRIES(attention_general_packed),
        ENTRIES(attention_general_dq), ENTRIES(attention_general_dkdv),
        ENTRY(gemv_8), ENTRY(gemv_16), ENTRY(gemv_gated_8), ENTRY(gemv_gated_16), ENTRY(gemv_normed), ENTRY(gemv_gated_normed),
        ENTRY(quantized_gemv_int4_8), ENTRY(quantized_gemv_int4_16), ENTRY(quantized_gemv_int8_8), ENTRY(quantized_gemv_int8_16),
        ENTRIES(dequantize_int4), ENTRIES(dequantize_int8),
        ENTRIES(lora_shrink), ENTRIES(lora_expand),
        ENTRY(head_scores), ENTRY(head_candidates), ENTRY(head_top), ENTRIES(head_backward),
        ENTRY(sample_maxima), ENTRY(sample_sums), ENTRY(sample),
        ENTRY(adamw), ENTRY(squared_norm), ENTRY(sum_partials),
    };
    return all;
}

} // namespace

Block& block() { return *current_block; }
Fiber& fiber() { return *current_fiber; }

void yield() {
    Fiber* own = current_fiber;
#if defined(__x86_64__)
    emulate_switch(&own->stack_pointer, scheduler);
#else
    swapcontext(static_cast<ucontext_t*>(own->stack_pointer), &scheduler);
#endif
}

void wait(Barrier& barrier) {
    unsigned generation = barrier.generation;
    barrier.arrived++;
    release(barrier);
    while (barrier.generation == generation) yield();
}

} // namespace emulate

// Runs a kernel; `reversed` runs the threads of a block in the other order between two barriers. Returns false if there
// is no such kernel.
extern "C" bool emulate_launch(const char* name, const unsigned* grid, unsigned threads, unsigned shared_bytes,
                               void** arguments, bool reversed, bool overlaps) {
    auto found = emulate::kernels().find(name);
    if (found == emulate::kernels().end()) return false;
    std::function<void()> body = [&] { found->second(arguments); };
    emulate::body = &body;
    dim3 size = {grid[0], grid[1], grid[2]};
    for (unsigned z = 0; z < size.z; z++)
        for (unsigned y = 0; y < size.y; y++)
            for (unsigned x = 0; x < size.x; x++) {
                unsigned waited = emulate::run_block({x, y, z}, size, {threads, 1, 1}, shared_bytes, reversed);
                if (overlaps && waited != threads) {
                    fprintf(stderr, "emulate: %s starts early, and not every thread waits for the kernels ahead\n", name);
                    abort();
                }
            }
    return true;
}

namespace {
template <class In, class Out>
void multiply(const In* a, long a_row, long a_k, const In* b, long b_column, long b_k, Out* c, long c_row, long m, long n,
              long k, float alpha, float beta) {
    // Columns of b in rows, so that the inner loop runs over consecutive values.
    std::vector<float> x(k), all(size_t(n) * k);
    for (long j = 0; j < n; j++)
        for (long i = 0; i < k; i++) all[size_t(j) * k + i] = to_float(b[j * b_column + i * b_k]);
    for (long r = 0; r < m; r++) {
        for (long i = 0; i < k; i++) x[i] = to_float(a[r * a_row + i * a_k]);
        for (long j = 0; j < n; j++) {
            const float* y = &all[size_t(j) * k];
            float lanes[8] = {};
            long i = 0;
            for (; i + 8 <= k; i += 8)
                for (int l = 0; l < 8; l++) lanes[l] += x[i + l] * y[i + l];
            float sum = 0;
            for (int l = 0; l < 8; l++) sum += lanes[l];
            for (; i < k; i++) sum += x[i] * y[i];
            Out* to = &c[r * c_row + j];
            *to = from_float<Out>(alpha * sum + (beta != 0 ? beta * to_float(*to) : 0.f));
        }
    }
}
} // namespace

// c [m, n] = alpha a b + beta c, in place of cuBLASLt. Strides are in elements.
extern "C" void emulate_multiply(bool bf16_inputs, bool bf16_output, const void* a, long a_row, long a_k, const void* b,
                                 long b_column, long b_k, void* c, long c_row, long m, long n, long k, float alpha, float beta) {
    if (bf16_inputs && bf16_output)
        multiply((const bf16*)a, a_row, a_k, (const bf16*)b, b_column, b_k, (bf16*)c, c_row, m, n, k, alpha, beta);
    else if (bf16_inputs)
        multiply((const bf16*)a, a_row, a_k, (const bf16*)b, b_column, b_k, (float*)c, c_row, m, n, k, alpha, beta);
    else
        multiply((const float*)a, a_row, a_k, (const float*)b, b_column, b_k, (float*)c, c_row, m, n, k, alpha, beta);
}
