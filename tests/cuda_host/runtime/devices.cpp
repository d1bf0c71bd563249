// Devices and errors. A device looks like an H100, unless the environment names another capability.
#include "emulation.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>

namespace emulated {

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error, const char* function) {
    Lock lock(state().mutex);
    last_error = error;
    note(record(kRefused, nullptr, std::string(function) + ": " + cudaGetErrorString(error)));
    return error;
}

// EMULATED_CAPABILITY="7.0", from the start of the process: torch keeps what it has read.
static std::pair<int, int> capability() {
    int major = 9, minor = 0;
    if (const char* text = std::getenv("EMULATED_CAPABILITY"))
        std::sscanf(text, "%d.%d", &major, &minor);
    return {major, minor};
}

static int attribute(cudaDeviceAttr name) {
    switch (name) {
        case cudaDevAttrComputeCapabilityMajor: return capability().first;
        case cudaDevAttrComputeCapabilityMinor: return capability().second;
        case cudaDevAttrMultiProcessorCount: return 132;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
        case cudaDevAttrMaxRegistersPerBlock: return 65536;
        case cudaDevAttrWarpSize: return 32;
        default: return 0;
    }
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = kDevices;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= kDevices) return fail(cudaErrorInvalidDevice, "cudaSetDevice");
    current_device() = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    std::memset(properties, 0, sizeof *properties);
    std::strcpy(properties->name, "emulated device");
    std::tie(properties->major, properties->minor) = capability();
    properties->totalGlobalMem = state().device_memory;
    properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerMultiprocessor = 65536;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties->sharedMemPerMultiprocessor = 233472;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->l2CacheSize = 50 << 20;
    properties->unifiedAddressing = properties->concurrentKernels = 1;
    properties->pciBusID = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int) {
    *value = attribute(name);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int, int) {
    *can_access = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    std::snprintf(text, size, "0000:%02x:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureIsolation:
            return "dependency created on uncaptured work in another stream";
        case cudaErrorCapturedEvent: return "operation not permitted on an event of a capture";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInvalidValue: return "invalid argument";
        default: return "an error of the emulated runtime";
    }
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
    *pool = nullptr;
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    *function = nullptr;  // torch does without
    if (result) *result = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
