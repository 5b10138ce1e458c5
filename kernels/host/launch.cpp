#include "launch.h"

#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "shim.h"

#include "../cuda/abi.cuh"
#include "../cuda/copy.cu"
#include "../cuda/blake3.cu"
#include "../cuda/product.cu"

namespace tender_host {
namespace {

using Copy = void (u64, u64, u64, u64);

template <Copy* kernel>
void four(const u64* a) {
    kernel(a[0], a[1], a[2], a[3]);
}

void groups(const u64* a) {
    tender_blake3_groups(a[0], a[1], a[2], a[3], a[4]);
}

const Kernel kernels[] = {
    {"tender_gather", 4, false, four<tender_gather>},
    {"tender_scatter", 4, false, four<tender_scatter>},
    {"tender_gather_small", 4, false, four<tender_gather_small>},
    {"tender_scatter_small", 4, false, four<tender_scatter_small>},
    {"tender_blake3_groups", 5, true, groups},
    {"tender_blake3_roots", 4, true, four<tender_blake3_roots>},
    {"tender_product", 4, false, four<tender_product>},
};

// Shared memory is static here, so there is one launch at a time.
std::mutex launching;

void run_block(const Kernel& kernel, unsigned nth, const u64* arguments) {
    blockIdx.x = nth;
    kernel.run(arguments);
}

// One thread after another: right for kernels without barriers.
void run_in_turn(const Kernel& kernel, unsigned grid, unsigned block, const u64* arguments) {
    gridDim.x = grid;
    blockDim.x = block;
    for (unsigned nth = 0; nth < grid; nth++) {
        for (unsigned thread = 0; thread < block; thread++) {
            threadIdx.x = thread;
            run_block(kernel, nth, arguments);
        }
    }
}

// Threads of a block, each with a stack of its own, taking turns on this one.
struct Threads {
    static constexpr std::size_t STACK_BYTES = 256 << 10;

    const Kernel& kernel;
    unsigned nth_block;
    const u64* arguments;
    std::vector<std::unique_ptr<char[]>> stacks;
    std::vector<ucontext_t> contexts;
    std::vector<bool> done;
    ucontext_t scheduler;
    unsigned running = 0;

    Threads(const Kernel& of, unsigned block, const u64* with)
        : kernel(of), nth_block(0), arguments(with), stacks(block), contexts(block), done(block), scheduler() {
        for (std::unique_ptr<char[]>& stack : stacks) {
            stack.reset(new char[STACK_BYTES]);
        }
    }
    static void enter();
    void run(unsigned nth, std::minstd_rand& random);
    // Runs a thread until its next barrier or its end.
    void resume(unsigned thread) {
        running = thread;
        threadIdx.x = thread;
        swapcontext(&scheduler, &contexts[thread]);
    }
};

Threads* threads = nullptr;

void Threads::enter() {
    run_block(threads->kernel, threads->nth_block, threads->arguments);
    threads->done[threads->running] = true;
    swapcontext(&threads->contexts[threads->running], &threads->scheduler);
}

void Threads::run(unsigned nth, std::minstd_rand& random) {
    nth_block = nth;
    done.assign(done.size(), false);
    for (std::size_t thread = 0; thread < contexts.size(); thread++) {
        getcontext(&contexts[thread]);
        contexts[thread].uc_stack.ss_sp = stacks[thread].get();
        contexts[thread].uc_stack.ss_size = STACK_BYTES;
        contexts[thread].uc_link = nullptr;
        makecontext(&contexts[thread], enter, 0);
    }
    std::vector<unsigned> order(contexts.size());
    std::iota(order.begin(), order.end(), 0u);
    // From one barrier to the next in another order each time, so that a missing barrier shows.
    while (std::find(done.begin(), done.end(), false) != done.end()) {
        std::shuffle(order.begin(), order.end(), random);
        auto ended = std::count(done.begin(), done.end(), true);
        if (ended != 0) {
            std::fputs("some threads of a block wait at a barrier that others never reach\n", stderr);
            std::abort();
        }
        for (unsigned thread : order) {
            resume(thread);
        }
    }
}

void run_together(const Kernel& kernel, unsigned grid, unsigned block, const u64* arguments) {
    Threads all(kernel, block, arguments);
    std::minstd_rand random(grid);
    threads = &all;
    gridDim.x = grid;
    blockDim.x = block;
    for (unsigned nth = 0; nth < grid; nth++) {
        all.run(nth, random);
    }
    threads = nullptr;
}

} // namespace

void barrier() {
    swapcontext(&threads->contexts[threads->running], &threads->scheduler);
}

const Kernel* find(const char* name) {
    for (const Kernel& kernel : kernels) {
        if (std::strcmp(kernel.name, name) == 0) {
            return &kernel;
        }
    }
    return nullptr;
}

void launch(const Kernel& kernel, unsigned grid, unsigned block, const u64* arguments) {
    std::lock_guard<std::mutex> lock(launching);
    (kernel.barriers ? run_together : run_in_turn)(kernel, grid, block, arguments);
}

} // namespace tender_host

extern "C" int tender_host_launch(const char* name, unsigned grid, unsigned block, const u64* arguments) {
    const tender_host::Kernel* kernel = tender_host::find(name);
    if (kernel == nullptr) {
        return -1;
    }
    tender_host::launch(*kernel, grid, block, arguments);
    return 0;
}
