// What the tests call: the log, faults, schedules, and the queue for torch's operations.
#include "emulation.h"

using namespace emulated;

extern "C" {

void emulated_log(int on) {
    Lock lock(state().mutex);
    state().logs = on;
    if (on) state().log.clear();
}
long emulated_log_size() { return static_cast<long>(state().log.size()); }
const Record* emulated_log_record(long index) { return &state().log[index]; }

long emulated_fault_count() { return static_cast<long>(state().faults.size()); }
const char* emulated_fault(long index) { return state().faults[index].c_str(); }
void emulated_clear_faults() {
    Lock lock(state().mutex);
    state().faults.clear();
}
void emulated_add_fault(const char* text) { fault(text); }

// Finishes all queued work, and begins another schedule.
void emulated_schedule(int schedule, unsigned seed) {
    Lock lock(state().mutex);
    run_all();
    state().schedule = static_cast<Schedule>(schedule);
    state().random.seed(seed);
}

void emulated_device_memory(unsigned long long bytes) {
    Lock lock(state().mutex);
    state().device_memory = bytes;
}
unsigned long long emulated_allocated(int device) { return state().allocated[device]; }

// Queues a call of Python on a stream; `operation` goes to the call.
void emulated_enqueue(void* handle, const char* title, void (*call)(long), long operation) {
    Stream* stream = stream_of(static_cast<cudaStream_t>(handle));
    push(stream, record(kTorch, stream, title), [=](long) { call(operation); });
}

}  // extern "C"
