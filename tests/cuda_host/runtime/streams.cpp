// Streams and events: queues of work, and the three schedules in which they run.
#include "emulation.h"

#include <algorithm>
#include <cstring>

namespace emulated {

State& state() {
    static State* instance = new State;  // never destroyed: torch calls until the process ends
    return *instance;
}

int& current_device() {
    static thread_local int device = 0;
    return device;
}

void fault(const std::string& text) {
    Lock lock(state().mutex);
    state().faults.push_back(text);
}

static Stream* new_stream(int device) {
    auto* stream = new Stream;
    stream->device = device;
    stream->id = state().streams.size();
    state().streams.insert(stream);
    return stream;
}

Stream* stream_of(cudaStream_t stream) {
    Lock lock(state().mutex);
    if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread)
        return reinterpret_cast<Stream*>(stream);
    Stream*& own = state().default_streams[current_device()];
    if (!own) own = new_stream(current_device());
    return own;
}

Record record(Kind kind, const Stream* stream, const std::string& title) {
    Record made{};
    made.kind = kind;
    made.device = stream ? stream->device : current_device();
    made.stream = stream ? stream->id : 0;
    made.captured = stream && stream->capture;
    std::strncpy(made.title, title.c_str(), sizeof made.title - 1);
    return made;
}

void note(const Record& made) {
    if (state().logs) state().log.push_back(made);
}

void note_wait(const char* function, const Stream* stream) {
    note(record(kWait, stream, function));
}

static void run_one(Stream* stream) {
    Queued item = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->is_running = true;
    item.work(item.replay_ticket);
    stream->is_running = false;
    stream->done++;
}

void run_until(Stream* stream, long position) {
    Lock lock(state().mutex);
    // Work that waits for its own stream would wait for ever: a garbage collection in the middle of
    // an operation may free memory, and gets here.
    while (!stream->is_running && stream->done < position && !stream->queue.empty()) run_one(stream);
}

static bool can_run(const Stream* stream) {
    if (stream->is_running || stream->queue.empty()) return false;
    const auto& is_ready = stream->queue.front().is_ready;
    return !is_ready || is_ready();
}

// Runs one item of a random stream; false: no stream can run.
static bool run_any() {
    std::vector<Stream*> able;
    for (Stream* stream : state().streams)
        if (can_run(stream)) able.push_back(stream);
    if (able.empty()) return false;
    std::sort(able.begin(), able.end(), [](Stream* a, Stream* b) { return a->id < b->id; });
    run_one(able[state().random() % able.size()]);
    return true;
}

void run_all() {
    Lock lock(state().mutex);
    while (run_any()) {
    }
}

void push_queued(Stream* stream, Queued item) {
    stream->queue.push_back(std::move(item));
    stream->queued++;
    if (state().schedule == kAtOnce) run_until(stream, stream->queued);
    if (state().schedule == kRandom)
        for (int count = state().random() % 3; count > 0 && run_any(); count--) {
        }
}

cudaError_t push(Stream* stream, Record made, Work work) {
    Lock lock(state().mutex);
    note(made);
    if (stream->capture)
        stream->capture->nodes.emplace_back(made, std::move(work));
    else
        push_queued(stream, {std::move(work), {}, 0});
    return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

static cudaError_t create(cudaStream_t* stream) {
    Lock lock(state().mutex);
    *stream = reinterpret_cast<cudaStream_t>(new_stream(current_device()));
    return cudaSuccess;
}

static Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return create(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    return create(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Lock lock(state().mutex);
    Stream* stream = stream_of(handle);
    if (stream->capture) {
        stream->is_invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported, "cudaStreamQuery");
    }
    return stream->queue.empty() && !stream->is_running ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Lock lock(state().mutex);
    Stream* stream = stream_of(handle);
    if (stream->capture) {
        stream->is_invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize");
    }
    note_wait("cudaStreamSynchronize", stream);
    run_until(stream, stream->queued);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    if (is_unsafe_now("cudaDeviceSynchronize")) return cudaErrorStreamCaptureUnsupported;
    note_wait("cudaDeviceSynchronize", nullptr);
    run_all();
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t call, void* data, unsigned) {
    Stream* stream = stream_of(handle);
    return push(stream, record(kTorch, stream, "callback"),
                [=](long) { call(handle, cudaSuccess, data); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t call, void* data) {
    Stream* stream = stream_of(handle);
    return push(stream, record(kTorch, stream, "host function"), [=](long) { call(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = reinterpret_cast<cudaEvent_t>(new Event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event_of(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
    Lock lock(state().mutex);
    Stream* stream = stream_of(stream_handle);
    *event_of(handle) = {stream, stream->queued, stream->capture};
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    const Event* event = event_of(handle);
    if (event->graph) return fail(cudaErrorCapturedEvent, "cudaEventQuery");
    if (is_unsafe_now("cudaEventQuery")) return cudaErrorStreamCaptureUnsupported;
    Lock lock(state().mutex);
    bool is_done = !event->stream || event->stream->done >= event->position;
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    const Event* event = event_of(handle);
    if (event->graph) return fail(cudaErrorCapturedEvent, "cudaEventSynchronize");
    if (is_unsafe_now("cudaEventSynchronize")) return cudaErrorStreamCaptureUnsupported;
    Lock lock(state().mutex);
    note_wait("cudaEventSynchronize", event->stream);
    if (event->stream) run_until(event->stream, event->position);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 1;  // an emulated device has no time
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
    Lock lock(state().mutex);
    const Event event = *event_of(event_handle);
    Stream* stream = stream_of(handle);
    if (!event.stream) return cudaSuccess;
    if (event.graph && !stream->capture) {  // the stream joins the capture
        stream->capture = event.graph;
        stream->mode = event.stream->mode;
        stream->capture_id = event.stream->capture_id;
        stream->is_invalid = false;
        return cudaSuccess;
    }
    if (stream->capture) {
        if (event.graph == stream->capture) return cudaSuccess;  // nodes run in the order of capture
        stream->is_invalid = true;
        return fail(cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent");
    }
    note(record(kStreamWait, stream, "wait for stream " + std::to_string(event.stream->id)));
    push_queued(stream, {[event](long) { run_until(event.stream, event.position); },
                         [event] { return event.stream->done >= event.position; }, 0});
    return cudaSuccess;
}

}  // extern "C"
