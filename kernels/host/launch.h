// Runs kernels of the host build by name.
#pragma once

namespace tender_host {

struct Kernel {
    const char* name;
    unsigned arguments; // all of 64 bits
    bool barriers;
    void (*run)(const unsigned long long* arguments);
};

// Null if there is none of this name.
const Kernel* find(const char* name);

// Runs a whole grid and returns when it is done. Launches of several threads wait for each other.
void launch(const Kernel& kernel, unsigned grid, unsigned block, const unsigned long long* arguments);

} // namespace tender_host

// The same for callers of another language: 0, or -1 if there is no such kernel.
extern "C" int tender_host_launch(const char* name, unsigned grid, unsigned block, const unsigned long long* arguments);
