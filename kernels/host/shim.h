// CUDA's words as host C++, so that the kernels' own sources run on a CPU, the threads of a block one after another and
// in turns where a kernel has barriers. Accesses that a device would refuse for their alignment end the process here
// too.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace tender_host {
// Lets the other threads of the block come as far.
void barrier();
} // namespace tender_host

#define __global__
#define __device__
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static

inline void __syncthreads() {
    tender_host::barrier();
}

template <class V>
void check_alignment(const V* address) {
    if (reinterpret_cast<unsigned long long>(address) % sizeof(V) != 0) {
        std::fprintf(stderr, "misaligned access of %zu bytes at %p\n", sizeof(V), static_cast<const void*>(address));
        std::abort();
    }
}

template <class V>
V __ldcs(const V* address) {
    check_alignment(address);
    V value;
    std::memcpy(&value, address, sizeof(V));
    return value;
}

template <class V>
V __ldca(const V* address) {
    return __ldcs(address);
}

template <class V>
void __stcs(V* address, V value) {
    check_alignment(address);
    std::memcpy(address, &value, sizeof(V));
}
