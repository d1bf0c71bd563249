// Captures and graphs. A graph is a list of nodes in the order of capture, which is one of the
// orders that its edges allow.
#include "emulation.h"

#include <memory>

namespace emulated {

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool is_unsafe_now(const char* function) {
    Lock lock(state().mutex);
    if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
    for (Stream* stream : state().streams)
        if (stream->capture && stream->mode == cudaStreamCaptureModeGlobal) {
            stream->is_invalid = true;
            fail(cudaErrorStreamCaptureUnsupported, function);
            return true;
        }
    return false;
}

}  // namespace emulated

using namespace emulated;

static cudaStreamCaptureStatus status_of(const Stream* stream) {
    if (!stream->capture) return cudaStreamCaptureStatusNone;
    return stream->is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(thread_mode, *mode);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    Lock lock(state().mutex);
    *status = status_of(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t* dependencies) {
    Lock lock(state().mutex);
    const Stream* stream = stream_of(handle);
    *status = status_of(stream);
    if (id) *id = stream->capture_id;
    if (graph) *graph = reinterpret_cast<cudaGraph_t>(stream->capture);
    if (dependencies) *dependencies = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    static unsigned long long next_id = 1;
    Lock lock(state().mutex);
    if (!handle || handle == cudaStreamLegacy)
        return fail(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture");
    Stream* stream = stream_of(handle);
    stream->capture = new Graph;
    stream->is_invalid = false;
    stream->mode = mode;
    stream->capture_id = next_id++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    Lock lock(state().mutex);
    Graph* captured = stream_of(handle)->capture;
    bool is_invalid = false;
    for (Stream* stream : state().streams)
        if (captured && stream->capture == captured) {
            is_invalid |= stream->is_invalid;
            stream->capture = nullptr;
        }
    *graph = is_invalid ? nullptr : reinterpret_cast<cudaGraph_t>(captured);
    if (is_invalid) return fail(cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture");
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(made, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
    Lock lock(state().mutex);
    Stream* stream = stream_of(handle);
    if (stream->capture) return fail(cudaErrorNotSupported, "cudaGraphLaunch in a capture");
    note(record(kReplay, stream, "replay"));
    long ticket = state().new_ticket ? state().new_ticket() : 0;
    for (auto& [made, work] : reinterpret_cast<Graph*>(graph)->nodes)
        push_queued(stream, {work, {}, ticket});
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    *count = reinterpret_cast<Graph*>(graph)->nodes.size();
    return cudaSuccess;
}

}  // extern "C"
