// What torch and Triton's launcher call of the driver: contexts, modules, launches.
//
// A kernel is registered, with the sizes of its parameters, just before Triton loads it. A launch
// copies the parameters, and Python runs the kernel when its turn has come.
#include "emulation.h"

#include <cstring>

namespace emulated {

struct Kernel {
    long id;
    std::string name;
    std::vector<int> parameter_sizes;
    int device;
};

using Execute = void (*)(long kernel, long grid, const unsigned long long* arguments, long count,
                         int device, long ticket, long replay_ticket);

static Kernel loading{-1, "", {}, 0};
static Execute execute = nullptr;

static Kernel* kernel_of(CUfunction function) { return reinterpret_cast<Kernel*>(function); }

// Whether a launch names what belongs to another device, which CUDA refuses or reads wrongly.
static bool mixes_devices(const Kernel& kernel, const Stream* stream,
                          const std::vector<unsigned long long>& arguments) {
    const int device = current_device();
    bool mixes = stream->device != device || kernel.device != device;
    if (mixes) fault(kernel.name + ": stream, kernel and current device differ");
    for (size_t i = 0; i < arguments.size(); i++) {
        if (kernel.parameter_sizes[i] != 8) continue;
        const Block* block = block_of(reinterpret_cast<void*>(arguments[i]));
        if (block && block->memory == kDevice && block->device != device) {
            fault(kernel.name + ": an argument is memory of another device");
            mixes = true;
        }
    }
    return mixes;
}

static CUresult launch(CUfunction function, unsigned grid, CUstream handle, void** parameters) {
    Lock lock(state().mutex);
    const Kernel& kernel = *kernel_of(function);
    std::vector<unsigned long long> arguments;
    for (size_t i = 0; i < kernel.parameter_sizes.size(); i++) {
        arguments.push_back(0);
        std::memcpy(&arguments.back(), parameters[i], kernel.parameter_sizes[i]);
    }
    Stream* stream = stream_of(reinterpret_cast<cudaStream_t>(handle));
    if (mixes_devices(kernel, stream, arguments)) return CUDA_ERROR_INVALID_HANDLE;
    const long id = kernel.id, ticket = state().new_ticket();
    const int device = current_device();
    push(stream, record(kLaunch, stream, kernel.name), [=](long replay_ticket) {
        execute(id, grid, arguments.data(), arguments.size(), device, ticket, replay_ticket);
    });
    return CUDA_SUCCESS;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

void emulated_on_launch(long (*new_ticket)(), Execute function) {
    state().new_ticket = new_ticket;
    execute = function;
}

void emulated_register(long id, const char* name, const int* sizes, int count) {
    loading = {id, name, std::vector<int>(sizes, sizes + count), 0};
}

CUresult cuModuleLoadData(CUmodule* module, const void*) {
    if (is_unsafe_now("cuModuleLoadData")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    loading.device = current_device();
    *module = reinterpret_cast<CUmodule>(new Kernel(loading));
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(module, image);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char*) {
    *function = reinterpret_cast<CUfunction>(module);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
    return launch(function, config->gridDimX, config->hStream, parameters);
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream stream, void** parameters, void**) {
    return launch(function, grid, stream, parameters);
}

// The context of device i is i + 1.
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(static_cast<long>(current_device() + 1));
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) current_device() = static_cast<int>(reinterpret_cast<long>(context)) - 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    *context = reinterpret_cast<CUcontext>(static_cast<long>(device + 1));
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_active) {
    *flags = 0;
    *is_active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice device) {
    return static_cast<CUresult>(
        cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(name), device));
}
CUresult cuDriverGetVersion(int* version) {
    return static_cast<CUresult>(cudaDriverGetVersion(version));
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute name, CUfunction) {
    *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = cudaGetErrorString(static_cast<cudaError_t>(error));
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
    if (name == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
        if (!block_of(reinterpret_cast<void*>(address))) return CUDA_ERROR_INVALID_VALUE;
        *static_cast<CUdeviceptr*>(value) = address;
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
