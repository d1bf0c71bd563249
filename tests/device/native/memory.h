// The memory of the device, which the host cannot touch, and pinned memory of the host.
//
// A block is mapped twice. The address that tensors show may not be read or written: the host faults there. The threads
// of streams use the other address. A freed block is overwritten in the order of its stream, and given to the next
// tensor of the same size at once. So what reads it too late reads rubbish.
#pragma once

#include <cstddef>
#include <cstdint>

#include "streams.h"

namespace device {

// Returns the address that tensors show, or nullptr if the device's limit does not allow so many bytes.
void* allocate(size_t bytes);
void release(void* shown);

// Tells a block that a stream uses it: a freed block is not used again before the stream has come so far.
void record_stream(const void* shown, StreamId id);

// Returns the address by which a stream's thread may reach device memory; nullptr if it is no device memory.
char* reachable(const void* shown);

// Returns the stream that was current when device memory was allocated.
StreamId owner(const void* shown);

void* allocate_pinned(size_t bytes);
void release_pinned(void* address);
bool is_pinned(const void* address);

}  // namespace device
