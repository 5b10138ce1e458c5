// A CUDA driver without a GPU: device memory is host memory, a stream is a thread that works off a queue, a kernel is
// the host build of our own. Programs find it as libcuda.so.1 and run their whole path on a CPU.
//
// Streams run beside each other in any order that events allow, the default stream too: it waits for no other, as
// for streams that were made non-blocking. Device memory is poisoned when given out and when freed.
//
// Environment, read when a function is called:
//   TENDER_FAKE_CUDA_DEVICES   devices there are (1)
//   TENDER_FAKE_CUDA_MEMORY    bytes of each (2 GiB)
//   TENDER_FAKE_CUDA_DELAY_US  each piece of a stream's work waits up to so long before it starts (0)
//   TENDER_FAKE_CUDA_FAIL      function=error[@n],...: calls of a function fail, from its n-th on (1); an error that
//                              means a lost device is what every later call of its context answers, too
//   TENDER_FAKE_CUDA_SKIP      a kernel that does nothing, to see whether anybody notices
//   TENDER_FAKE_CUDA_VERSION   what the driver says it is (12090)
//   TENDER_FAKE_CUDA_CAPTURING whether streams say that they are being captured (0)

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "launch.h"

namespace {

using u64 = unsigned long long;
using Result = int;

enum : Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};

constexpr unsigned char POISON = 0xA5;
constexpr unsigned char FREED = 0xDD;
constexpr int MAX_DEVICES = 16;

u64 number_from(const char* name, u64 otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

int device_count() {
    return static_cast<int>(std::min<u64>(number_from("TENDER_FAKE_CUDA_DEVICES", 1), MAX_DEVICES));
}

// Errors after which a real context answers nothing else.
bool means_lost(Result error) {
    return error == 700 || error == 702 || (error >= 714 && error <= 719) || error == 999;
}

void lose(Result error);

// What the environment wants this call to answer.
Result wanted_failure(const char* function) {
    static std::mutex mutex;
    static std::map<std::string, u64> calls;
    const char* list = std::getenv("TENDER_FAKE_CUDA_FAIL");
    if (list == nullptr) {
        return SUCCESS;
    }
    std::lock_guard<std::mutex> lock(mutex);
    u64 nth = ++calls[function];
    std::string rest = list;
    while (!rest.empty()) {
        std::size_t comma = rest.find(',');
        std::string one = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        std::size_t equals = one.find('='), at = one.find('@');
        if (equals == std::string::npos || one.substr(0, equals) != function) {
            continue;
        }
        u64 from = at == std::string::npos ? 1 : std::strtoull(one.c_str() + at + 1, nullptr, 10);
        if (nth >= from) {
            Result error = std::atoi(one.c_str() + equals + 1);
            if (means_lost(error)) {
                lose(error);
            }
            return error;
        }
    }
    return SUCCESS;
}

// A point in a stream's work. Every record begins a new generation.
struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    u64 recorded = 0;
    u64 reached = 0;
    std::chrono::steady_clock::time_point when;

    u64 record() {
        std::lock_guard<std::mutex> lock(mutex);
        return ++recorded;
    }
    void reach(u64 generation) {
        std::lock_guard<std::mutex> lock(mutex);
        reached = std::max(reached, generation);
        when = std::chrono::steady_clock::now();
        changed.notify_all();
    }
    void wait_for(u64 generation) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return reached >= generation; });
    }
    bool is_done() {
        std::lock_guard<std::mutex> lock(mutex);
        return reached >= recorded;
    }
    u64 latest() {
        std::lock_guard<std::mutex> lock(mutex);
        return recorded;
    }
};

struct Context;

struct Stream {
    Context* context;
    int priority;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    bool busy = false;
    bool ending = false;
    std::minstd_rand random{1};
    std::thread thread;

    Stream(Context* owner, int wanted) : context(owner), priority(wanted), thread([this] { run(); }) {}

    void add(std::function<void()> piece) {
        std::lock_guard<std::mutex> lock(mutex);
        work.push_back(std::move(piece));
        changed.notify_all();
    }
    bool is_done() {
        std::lock_guard<std::mutex> lock(mutex);
        return work.empty() && !busy;
    }
    void drain() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return work.empty() && !busy; });
    }
    // What was queued is still done; then the stream is gone.
    void end() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            ending = true;
            changed.notify_all();
        }
        thread.join();
    }
    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        while (true) {
            changed.wait(lock, [&] { return !work.empty() || ending; });
            if (work.empty()) {
                return;
            }
            std::function<void()> piece = std::move(work.front());
            work.pop_front();
            busy = true;
            lock.unlock();
            if (u64 most = number_from("TENDER_FAKE_CUDA_DELAY_US", 0)) {
                std::this_thread::sleep_for(std::chrono::microseconds(random() % (most + 1)));
            }
            piece();
            lock.lock();
            busy = false;
            changed.notify_all();
        }
    }
};

struct Range {
    u64 bytes;
    bool on_device;
    bool registered;
};

struct Context {
    int device = 0;
    std::atomic<int> retained{0};
    // Why the device is lost; every later call answers it.
    std::atomic<Result> lost{SUCCESS};
    std::mutex mutex;
    std::map<u64, Range> ranges;
    u64 used = 0;
    std::vector<Stream*> streams;
    Stream* legacy = nullptr;

    const Range* find(u64 address, u64 bytes) {
        auto next = ranges.upper_bound(address);
        if (next == ranges.begin()) {
            return nullptr;
        }
        auto& [start, range] = *std::prev(next);
        return address + bytes <= start + range.bytes ? &range : nullptr;
    }
};

struct Module {
    std::string text;
    bool is_text;
};

// Lives to the end of the process: destructors of a program may call us late.
Context* contexts() {
    static Context* all = new Context[MAX_DEVICES];
    return all;
}

void lose(Result error) {
    for (int device = 0; device < MAX_DEVICES; device++) {
        contexts()[device].lost = error;
    }
}

std::atomic<bool> initialised{false};
thread_local std::vector<Context*> current;

Context* now() {
    return current.empty() ? nullptr : current.back();
}

Stream* stream_of(void* handle) {
    // 0, 1 and 2 are the default stream's names.
    if (reinterpret_cast<uintptr_t>(handle) > 2) {
        return static_cast<Stream*>(handle);
    }
    Context* context = now();
    if (context == nullptr) {
        return nullptr;
    }
    std::lock_guard<std::mutex> lock(context->mutex);
    if (context->legacy == nullptr) {
        context->legacy = new Stream(context, 0);
        context->streams.push_back(context->legacy);
    }
    return context->legacy;
}

u64 address_of(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer);
}

// Whether all these bytes are the device's to read or write.
bool on_device(Context* context, u64 address, u64 bytes) {
    std::lock_guard<std::mutex> lock(context->mutex);
    return bytes == 0 || context->find(address, bytes) != nullptr;
}

Result copy(void* to, const void* from, u64 bytes, u64 device_side, Stream* stream, bool wait) {
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    Context* context = stream->context;
    if (context->lost) {
        return context->lost;
    }
    if (!on_device(context, device_side, bytes)) {
        return INVALID_VALUE;
    }
    stream->add([=] { std::memmove(to, from, bytes); });
    if (wait) {
        stream->drain();
    }
    return SUCCESS;
}

Result allocate(u64* address, u64 bytes, bool device) {
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    if (context->lost) {
        return context->lost;
    }
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    std::lock_guard<std::mutex> lock(context->mutex);
    if (device && (bytes > number_from("TENDER_FAKE_CUDA_MEMORY", 2ull << 30) - context->used)) {
        return OUT_OF_MEMORY;
    }
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr) {
        return OUT_OF_MEMORY;
    }
    std::memset(memory, POISON, bytes);
    *address = address_of(memory);
    context->ranges[*address] = {bytes, device, false};
    context->used += device ? bytes : 0;
    return SUCCESS;
}

Result release(u64 address) {
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    std::lock_guard<std::mutex> lock(context->mutex);
    auto found = context->ranges.find(address);
    if (found == context->ranges.end() || found->second.registered) {
        return INVALID_VALUE;
    }
    // A real driver waits for the device here; so that nobody counts on it, this one does not.
    std::memset(reinterpret_cast<void*>(address), FREED, found->second.bytes);
    context->used -= found->second.on_device ? found->second.bytes : 0;
    std::free(reinterpret_cast<void*>(address));
    context->ranges.erase(found);
    return SUCCESS;
}

} // namespace

#define FAIL_IF_WANTED()                                  \
    do {                                                  \
        if (Result wanted = wanted_failure(__func__)) {   \
            return wanted;                                \
        }                                                 \
    } while (0)

#define NEEDS_DEVICE(device)                              \
    do {                                                  \
        FAIL_IF_WANTED();                                 \
        if (!initialised) {                               \
            return NOT_INITIALIZED;                       \
        }                                                 \
        if ((device) < 0 || (device) >= device_count()) { \
            return INVALID_DEVICE;                        \
        }                                                 \
    } while (0)

#define EXPORT extern "C" __attribute__((visibility("default"))) Result

// ---- Driver and devices

EXPORT cuInit(unsigned) {
    FAIL_IF_WANTED();
    if (device_count() == 0) {
        return NO_DEVICE;
    }
    initialised = true;
    return SUCCESS;
}

EXPORT cuDriverGetVersion(int* version) {
    FAIL_IF_WANTED();
    *version = static_cast<int>(number_from("TENDER_FAKE_CUDA_VERSION", 12090));
    return SUCCESS;
}

// NVRTC asks the driver for functions that are not public, and reads the table's size before it uses any: none here.
EXPORT cuGetExportTable(const void** table, const void*) {
    static const u64 only_its_size[] = {sizeof(u64)};
    *table = only_its_size;
    return SUCCESS;
}

EXPORT cuDeviceGetCount(int* count) {
    FAIL_IF_WANTED();
    *count = device_count();
    return initialised ? SUCCESS : NOT_INITIALIZED;
}

EXPORT cuDeviceGet(int* device, int ordinal) {
    NEEDS_DEVICE(ordinal);
    *device = ordinal;
    return SUCCESS;
}

EXPORT cuDeviceGetName(char* name, int bytes, int device) {
    NEEDS_DEVICE(device);
    std::snprintf(name, static_cast<std::size_t>(bytes), "fake, no measure");
    return SUCCESS;
}

EXPORT cuDeviceGetUuid_v2(char* uuid, int device) {
    NEEDS_DEVICE(device);
    std::memset(uuid, device, 16);
    return SUCCESS;
}

EXPORT cuDeviceGetUuid(char* uuid, int device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
    NEEDS_DEVICE(device);
    *bytes = number_from("TENDER_FAKE_CUDA_MEMORY", 2ull << 30);
    return SUCCESS;
}

EXPORT cuDeviceGetAttribute(int* value, int attribute, int device) {
    NEEDS_DEVICE(device);
    static const std::map<int, int> values = {
        {1, 1024},  // threads of a block
        {2, 1024},  // along x
        {5, 1 << 30}, // blocks along x
        {8, 48 << 10}, // shared memory of a block
        {10, 32},   // threads of a warp
        {16, 2},    // multiprocessors
        {19, 1},    // maps host memory
        {39, 2048}, // threads of a multiprocessor
        {40, 2},    // copy engines
        {41, 1},    // one address space
        {75, 8},    // compute capability
        {76, 0},
        {78, 1},    // stream priorities
        {91, 1},    // registered memory has the host's address
        {99, 1},    // registers host memory
        {113, 1},   // read-only, too
    };
    auto found = values.find(attribute);
    *value = found == values.end() ? 0 : found->second;
    return SUCCESS;
}

// ---- Contexts

EXPORT cuDevicePrimaryCtxRetain(void** context, int device) {
    NEEDS_DEVICE(device);
    contexts()[device].device = device;
    contexts()[device].retained++;
    *context = &contexts()[device];
    return SUCCESS;
}

EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
    NEEDS_DEVICE(device);
    if (contexts()[device].retained == 0) {
        return INVALID_CONTEXT;
    }
    contexts()[device].retained--;
    return SUCCESS;
}

EXPORT cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    NEEDS_DEVICE(device);
    *flags = 0;
    *active = contexts()[device].retained > 0;
    return SUCCESS;
}

EXPORT cuCtxGetCurrent(void** context) {
    FAIL_IF_WANTED();
    *context = now();
    return SUCCESS;
}

EXPORT cuCtxSetCurrent(void* context) {
    FAIL_IF_WANTED();
    if (!current.empty()) {
        current.pop_back();
    }
    if (context != nullptr) {
        current.push_back(static_cast<Context*>(context));
    }
    return SUCCESS;
}

EXPORT cuCtxPushCurrent_v2(void* context) {
    FAIL_IF_WANTED();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    current.push_back(static_cast<Context*>(context));
    return SUCCESS;
}

EXPORT cuCtxPopCurrent_v2(void** context) {
    FAIL_IF_WANTED();
    if (current.empty()) {
        return INVALID_CONTEXT;
    }
    if (context != nullptr) {
        *context = current.back();
    }
    current.pop_back();
    return SUCCESS;
}

EXPORT cuCtxGetDevice(int* device) {
    FAIL_IF_WANTED();
    if (now() == nullptr) {
        return INVALID_CONTEXT;
    }
    *device = now()->device;
    return SUCCESS;
}

EXPORT cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    FAIL_IF_WANTED();
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

EXPORT cuCtxSynchronize() {
    FAIL_IF_WANTED();
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    std::vector<Stream*> all;
    {
        std::lock_guard<std::mutex> lock(context->mutex);
        all = context->streams;
    }
    for (Stream* stream : all) {
        stream->drain();
    }
    return context->lost;
}

// ---- Streams and events

EXPORT cuStreamCreateWithPriority(void** stream, unsigned, int priority) {
    FAIL_IF_WANTED();
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    Stream* made = new Stream(context, priority);
    std::lock_guard<std::mutex> lock(context->mutex);
    context->streams.push_back(made);
    *stream = made;
    return SUCCESS;
}

EXPORT cuStreamCreate(void** stream, unsigned flags) {
    FAIL_IF_WANTED();
    return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT cuStreamDestroy_v2(void* handle) {
    FAIL_IF_WANTED();
    Stream* stream = static_cast<Stream*>(handle);
    {
        std::lock_guard<std::mutex> lock(stream->context->mutex);
        auto& all = stream->context->streams;
        all.erase(std::remove(all.begin(), all.end(), stream), all.end());
    }
    stream->end();
    delete stream;
    return SUCCESS;
}

EXPORT cuStreamSynchronize(void* handle) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    stream->drain();
    return stream->context->lost;
}

EXPORT cuStreamQuery(void* handle) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    Result lost = stream->context->lost;
    return lost ? lost : stream->is_done() ? SUCCESS : NOT_READY;
}

EXPORT cuStreamGetCtx(void* handle, void** context) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    *context = stream->context;
    return SUCCESS;
}

EXPORT cuStreamGetPriority(void* handle, int* priority) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    *priority = stream == nullptr ? 0 : stream->priority;
    return SUCCESS;
}

EXPORT cuStreamIsCapturing(void*, int* capturing) {
    FAIL_IF_WANTED();
    *capturing = static_cast<int>(number_from("TENDER_FAKE_CUDA_CAPTURING", 0));
    return SUCCESS;
}

// Nothing is ever captured here, so no mode forbids anything.
EXPORT cuThreadExchangeStreamCaptureMode(int* mode) {
    FAIL_IF_WANTED();
    static thread_local int now_set = 0;
    std::swap(*mode, now_set);
    return SUCCESS;
}

EXPORT cuStreamWaitEvent(void* handle, void* event, unsigned) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    Event* waited = static_cast<Event*>(event);
    u64 generation = waited->latest();
    stream->add([=] { waited->wait_for(generation); });
    return SUCCESS;
}

EXPORT cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    stream->add([=] { function(data); });
    return SUCCESS;
}

EXPORT cuEventCreate(void** event, unsigned) {
    FAIL_IF_WANTED();
    *event = new Event;
    return SUCCESS;
}

// Destroyed events are kept: queued work may still reach them.
EXPORT cuEventDestroy_v2(void*) {
    FAIL_IF_WANTED();
    return SUCCESS;
}

EXPORT cuEventRecord(void* event, void* handle) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    Event* recorded = static_cast<Event*>(event);
    u64 generation = recorded->record();
    stream->add([=] { recorded->reach(generation); });
    return stream->context->lost;
}

EXPORT cuEventQuery(void* event) {
    FAIL_IF_WANTED();
    if (now() != nullptr && now()->lost) {
        return now()->lost;
    }
    return static_cast<Event*>(event)->is_done() ? SUCCESS : NOT_READY;
}

EXPORT cuEventSynchronize(void* event) {
    FAIL_IF_WANTED();
    Event* waited = static_cast<Event*>(event);
    waited->wait_for(waited->latest());
    return now() == nullptr ? SUCCESS : now()->lost.load();
}

EXPORT cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    FAIL_IF_WANTED();
    Event *first = static_cast<Event*>(from), *last = static_cast<Event*>(to);
    if (!first->is_done() || !last->is_done()) {
        return NOT_READY;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(last->when - first->when).count();
    return SUCCESS;
}

EXPORT cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

// ---- Memory

EXPORT cuMemAlloc_v2(u64* address, std::size_t bytes) {
    FAIL_IF_WANTED();
    return allocate(address, bytes, true);
}

EXPORT cuMemFree_v2(u64 address) {
    FAIL_IF_WANTED();
    return address == 0 ? SUCCESS : release(address);
}

EXPORT cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    FAIL_IF_WANTED();
    u64 address = 0;
    Result result = allocate(&address, bytes, false);
    *pointer = reinterpret_cast<void*>(address);
    return result;
}

EXPORT cuMemFreeHost(void* pointer) {
    FAIL_IF_WANTED();
    return release(address_of(pointer));
}

EXPORT cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
    FAIL_IF_WANTED();
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    std::lock_guard<std::mutex> lock(context->mutex);
    *total = number_from("TENDER_FAKE_CUDA_MEMORY", 2ull << 30);
    *free_bytes = *total - std::min<u64>(*total, context->used);
    return SUCCESS;
}

EXPORT cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned) {
    FAIL_IF_WANTED();
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    u64 address = address_of(pointer);
    std::lock_guard<std::mutex> lock(context->mutex);
    auto next = context->ranges.lower_bound(address);
    bool behind = next != context->ranges.end() && next->first < address + bytes;
    bool before = next != context->ranges.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address;
    if (behind || before) {
        return ALREADY_REGISTERED;
    }
    context->ranges[address] = {bytes, false, true};
    return SUCCESS;
}

EXPORT cuMemHostUnregister(void* pointer) {
    FAIL_IF_WANTED();
    Context* context = now();
    if (context == nullptr) {
        return INVALID_CONTEXT;
    }
    std::lock_guard<std::mutex> lock(context->mutex);
    auto found = context->ranges.find(address_of(pointer));
    if (found == context->ranges.end() || !found->second.registered) {
        return NOT_REGISTERED;
    }
    context->ranges.erase(found);
    return SUCCESS;
}

EXPORT cuMemHostGetDevicePointer_v2(u64* address, void* pointer, unsigned) {
    FAIL_IF_WANTED();
    if (now() == nullptr || !on_device(now(), address_of(pointer), 1)) {
        return INVALID_VALUE;
    }
    *address = address_of(pointer);
    return SUCCESS;
}

EXPORT cuPointerGetAttribute(void* value, int attribute, u64 address) {
    FAIL_IF_WANTED();
    for (int device = 0; device < device_count(); device++) {
        Context& context = contexts()[device];
        std::lock_guard<std::mutex> lock(context.mutex);
        const Range* range = context.find(address, 1);
        if (range == nullptr) {
            continue;
        }
        switch (attribute) {
        case 1: *static_cast<void**>(value) = &context; return SUCCESS;
        case 2: *static_cast<unsigned*>(value) = range->on_device ? 2 : 1; return SUCCESS;
        case 3: case 4: *static_cast<u64*>(value) = address; return SUCCESS;
        case 9: *static_cast<int*>(value) = device; return SUCCESS;
        default: return INVALID_VALUE;
        }
    }
    return INVALID_VALUE;
}

EXPORT cuMemcpyHtoD_v2(u64 to, const void* from, std::size_t bytes) {
    FAIL_IF_WANTED();
    return copy(reinterpret_cast<void*>(to), from, bytes, to, stream_of(nullptr), true);
}

EXPORT cuMemcpyDtoH_v2(void* to, u64 from, std::size_t bytes) {
    FAIL_IF_WANTED();
    return copy(to, reinterpret_cast<void*>(from), bytes, from, stream_of(nullptr), true);
}

EXPORT cuMemcpyDtoD_v2(u64 to, u64 from, std::size_t bytes) {
    FAIL_IF_WANTED();
    return copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, to, stream_of(nullptr), true);
}

// Memory that is not pinned is read before the call returns, as a real driver does.
EXPORT cuMemcpyHtoDAsync_v2(u64 to, const void* from, std::size_t bytes, void* stream) {
    FAIL_IF_WANTED();
    Stream* on = stream_of(stream);
    if (on == nullptr) {
        return INVALID_CONTEXT;
    }
    if (on_device(on->context, address_of(from), bytes)) {
        return copy(reinterpret_cast<void*>(to), from, bytes, to, on, false);
    }
    auto kept = std::make_shared<std::vector<char>>(bytes);
    std::memcpy(kept->data(), from, bytes);
    if (on->context->lost) {
        return on->context->lost;
    }
    if (!on_device(on->context, to, bytes)) {
        return INVALID_VALUE;
    }
    on->add([=] { std::memcpy(reinterpret_cast<void*>(to), kept->data(), bytes); });
    return SUCCESS;
}

// Into memory that is not pinned a copy is done when the call returns.
EXPORT cuMemcpyDtoHAsync_v2(void* to, u64 from, std::size_t bytes, void* stream) {
    FAIL_IF_WANTED();
    Stream* on = stream_of(stream);
    bool pinned = on != nullptr && on_device(on->context, address_of(to), bytes);
    return copy(to, reinterpret_cast<void*>(from), bytes, from, on, !pinned);
}

EXPORT cuMemcpyDtoDAsync_v2(u64 to, u64 from, std::size_t bytes, void* stream) {
    FAIL_IF_WANTED();
    return copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, to, stream_of(stream), false);
}

EXPORT cuMemsetD8Async(u64 to, unsigned char value, std::size_t bytes, void* stream) {
    FAIL_IF_WANTED();
    Stream* on = stream_of(stream);
    if (on == nullptr) {
        return INVALID_CONTEXT;
    }
    if (!on_device(on->context, to, bytes)) {
        return INVALID_VALUE;
    }
    on->add([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
    return on->context->lost;
}

EXPORT cuMemsetD8_v2(u64 to, unsigned char value, std::size_t bytes) {
    Result result = cuMemsetD8Async(to, value, bytes, nullptr);
    return result ? result : cuStreamSynchronize(nullptr);
}

// ---- Modules and launches

EXPORT cuModuleLoadData(void** module, const void* image) {
    FAIL_IF_WANTED();
    if (now() == nullptr) {
        return INVALID_CONTEXT;
    }
    const char* text = static_cast<const char*>(image);
    // A cubin begins as every ELF file does; what is in it cannot be looked at here.
    bool elf = std::memcmp(text, "\x7f" "ELF", 4) == 0;
    if (!elf && std::strstr(text, ".version") == nullptr) {
        return INVALID_IMAGE;
    }
    *module = new Module{elf ? "" : text, !elf};
    return SUCCESS;
}

EXPORT cuModuleUnload(void* module) {
    FAIL_IF_WANTED();
    delete static_cast<Module*>(module);
    return SUCCESS;
}

EXPORT cuModuleGetFunction(void** function, void* handle, const char* name) {
    FAIL_IF_WANTED();
    const Module* module = static_cast<const Module*>(handle);
    const tender_host::Kernel* kernel = tender_host::find(name);
    bool named = !module->is_text || module->text.find(std::string(".entry ") + name + "(") != std::string::npos;
    if (kernel == nullptr || !named) {
        return NOT_FOUND;
    }
    *function = const_cast<tender_host::Kernel*>(kernel);
    return SUCCESS;
}

EXPORT cuFuncGetAttribute(int* value, int, void*) {
    FAIL_IF_WANTED();
    *value = 0;
    return SUCCESS;
}

EXPORT cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void* handle, void** parameters,
                      void** extra) {
    FAIL_IF_WANTED();
    Stream* stream = stream_of(handle);
    if (stream == nullptr) {
        return INVALID_CONTEXT;
    }
    if (stream->context->lost) {
        return stream->context->lost;
    }
    bool flat = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
    bool fits = grid_x >= 1 && block_x >= 1 && block_x <= 1024 && shared_bytes <= 48u << 10;
    if (!flat || !fits || parameters == nullptr || extra != nullptr) {
        return INVALID_VALUE;
    }
    const tender_host::Kernel* kernel = static_cast<const tender_host::Kernel*>(function);
    std::vector<u64> arguments(kernel->arguments);
    for (std::size_t nth = 0; nth < arguments.size(); nth++) {
        std::memcpy(&arguments[nth], parameters[nth], sizeof(u64));
    }
    const char* skipped = std::getenv("TENDER_FAKE_CUDA_SKIP");
    if (skipped == nullptr || std::strcmp(skipped, kernel->name) != 0) {
        stream->add([=] { tender_host::launch(*kernel, grid_x, block_x, arguments.data()); });
    }
    return SUCCESS;
}

// ---- Errors

EXPORT cuGetErrorName(Result error, const char** name) {
    static const std::map<Result, const char*> names = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    };
    auto found = names.find(error);
    *name = found == names.end() ? "CUDA_ERROR_OF_THE_FAKE_DRIVER" : found->second;
    return SUCCESS;
}

EXPORT cuGetErrorString(Result error, const char** text) {
    return cuGetErrorName(error, text);
}
