// Memory: of a device, pinned, or the application's own. New and freed memory holds NaN.
#include "emulation.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace emulated {

constexpr int kPoison = 0xFF;  // a NaN in every floating-point format, and -1 as an integer
constexpr size_t kAlignment = 512;

Block* block_of(const void* address) {
    Lock lock(state().mutex);
    auto* byte = static_cast<char*>(const_cast<void*>(address));
    auto next = state().blocks.upper_bound(byte);
    if (next == state().blocks.begin()) return nullptr;
    auto& [start, block] = *--next;
    return byte < start + block.size ? &block : nullptr;
}

Memory memory_of(const void* address) {
    const Block* block = block_of(address);
    return block ? block->memory : kPageable;
}

static cudaError_t allocate(void** address, size_t size, Memory memory) {
    Lock lock(state().mutex);
    size_t rounded = std::max((size + kAlignment - 1) / kAlignment, size_t(1)) * kAlignment;
    size_t& allocated = state().allocated[current_device()];
    if (memory == kDevice && allocated + rounded > state().device_memory)
        return fail(cudaErrorMemoryAllocation, "cudaMalloc");
    if (memory == kDevice) allocated += rounded;
    *address = std::aligned_alloc(kAlignment, rounded);
    std::memset(*address, kPoison, rounded);
    state().blocks[static_cast<char*>(*address)] = {rounded, current_device(), memory, true};
    return cudaSuccess;
}

static cudaError_t release(void* address) {
    Lock lock(state().mutex);
    run_all();  // it waits for the device
    auto found = state().blocks.find(static_cast<char*>(address));
    if (found == state().blocks.end()) return fail(cudaErrorInvalidValue, "cudaFree");
    const Block& block = found->second;
    if (block.memory == kDevice) state().allocated[block.device] -= block.size;
    std::memset(address, kPoison, block.size);
    state().blocks.erase(found);
    std::free(address);
    return cudaSuccess;
}

static Record copy_record(const Stream* stream, const void* to, const void* from, size_t bytes) {
    Record made = record(kCopy, stream, "copy");
    made.from = memory_of(from);
    made.to = memory_of(to);
    made.bytes = bytes;
    return made;
}

static cudaError_t copy(void* to, const void* from, size_t bytes, Stream* stream) {
    Lock lock(state().mutex);
    Record made = copy_record(stream, to, from, bytes);
    if (made.from == kPageable && !stream->capture) {  // staged before the call returns
        std::string staged(static_cast<const char*>(from), bytes);
        return push(stream, made, [=](long) { std::memcpy(to, staged.data(), bytes); });
    }
    cudaError_t result = push(stream, made, [=](long) { std::memcpy(to, from, bytes); });
    if (made.to == kPageable && !stream->capture) {
        note_wait("copy to pageable memory", stream);
        run_until(stream, stream->queued);
    }
    return result;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
    if (is_unsafe_now("cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
    return allocate(address, size, kDevice);
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
    if (is_unsafe_now("cudaHostAlloc")) return cudaErrorStreamCaptureUnsupported;
    return allocate(address, size, kPinned);
}

cudaError_t cudaFree(void* address) {
    if (!address) return cudaSuccess;
    if (is_unsafe_now("cudaFree")) return cudaErrorStreamCaptureUnsupported;
    note_wait("cudaFree", nullptr);
    return release(address);
}

cudaError_t cudaFreeHost(void* address) {
    if (is_unsafe_now("cudaFreeHost")) return cudaErrorStreamCaptureUnsupported;
    note_wait("cudaFreeHost", nullptr);
    return release(address);
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
    if (is_unsafe_now("cudaHostRegister")) return cudaErrorStreamCaptureUnsupported;
    Lock lock(state().mutex);
    state().blocks[static_cast<char*>(address)] = {size, current_device(), kPinned, false};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
    Lock lock(state().mutex);
    state().blocks.erase(static_cast<char*>(address));
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    Lock lock(state().mutex);
    *total = state().device_memory;
    *free = *total - std::min(*total, state().allocated[current_device()]);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    Lock lock(state().mutex);
    std::memset(attributes, 0, sizeof *attributes);
    const Block* block = block_of(address);
    attributes->type = !block                    ? cudaMemoryTypeUnregistered
                       : block->memory == kPinned ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeDevice;
    attributes->device = block ? block->device : -2;
    if (block) attributes->devicePointer = const_cast<void*>(address);
    if (block && block->memory == kPinned) attributes->hostPointer = const_cast<void*>(address);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return copy(to, from, bytes, stream_of(stream));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return copy(to, from, bytes, stream_of(stream));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    if (is_unsafe_now("cudaMemcpy")) return cudaErrorStreamCaptureUnsupported;
    Lock lock(state().mutex);
    Stream* stream = stream_of(nullptr);
    copy(to, from, bytes, stream);
    note_wait("cudaMemcpy", stream);
    run_until(stream, stream->queued);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    return push(stream, copy_record(stream, to, from, width * height), [=](long) {
        for (size_t row = 0; row < height; row++)
            std::memcpy(static_cast<char*>(to) + row * to_pitch,
                        static_cast<const char*>(from) + row * from_pitch, width);
    });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    Record made = record(kFill, stream, "fill");
    made.bytes = bytes;
    return push(stream, made, [=](long) { std::memset(to, value, bytes); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    if (is_unsafe_now("cudaMemset")) return cudaErrorStreamCaptureUnsupported;
    return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
