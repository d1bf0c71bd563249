// Functions that torch links to and that no test may call. A call is a fault of the emulation.
// The toolkit's headers are not included, because they declare the arguments.
#include <string>

namespace emulated {
void fault(const std::string& text);
}

#define ABSENT(name)                                                      \
    extern "C" int name() {                                               \
        emulated::fault(#name " was called, and the emulation lacks it"); \
        return 801; /* cudaErrorNotSupported */                           \
    }

ABSENT(cudaFreeAsync)
ABSENT(cudaGetSymbolAddress)
ABSENT(cudaGraphAddNode)
ABSENT(cudaGraphConditionalHandleCreate)
ABSENT(cudaGraphDebugDotPrint)
ABSENT(cudaGraphNodeGetDependencies)
ABSENT(cudaIpcCloseMemHandle)
ABSENT(cudaIpcGetEventHandle)
ABSENT(cudaIpcGetMemHandle)
ABSENT(cudaIpcOpenEventHandle)
ABSENT(cudaIpcOpenMemHandle)
ABSENT(cudaKernelSetAttributeForDevice)
ABSENT(cudaLibraryGetKernel)
ABSENT(cudaLibraryLoadData)
ABSENT(cudaLibraryUnload)
ABSENT(cudaMallocAsync)
ABSENT(cudaMemPoolSetAccess)
ABSENT(cudaMemPoolTrimTo)
ABSENT(cudaMemcpyToSymbol)
ABSENT(cudaStreamBeginCaptureToGraph)
ABSENT(cudaStreamUpdateCaptureDependencies)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxSetLimit)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLinkAddData_v2)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate_v2)
ABSENT(cuModuleLoad)
ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ABSENT(cuOccupancyMaxActiveClusters)
ABSENT(cuTensorMapEncodeIm2col)
ABSENT(cuTensorMapEncodeTiled)
