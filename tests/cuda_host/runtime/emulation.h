// An emulated CUDA: the memory of a device is host memory, and streams run late.
//
// Work that is queued on a stream runs when something waits for it, as late as CUDA allows. So a
// buffer that is written again too early, or a missing wait, gives a wrong result every time, not
// one time in a million. Two other schedules run work at once, or in a random order.
//
// The rules of captures are those of the CUDA programming guide and of the runtime's reference.
#pragma once
#define __CUDA_RUNTIME_API_VERSION 13000
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace emulated {

constexpr int kDevices = 2;

// What a record of the log tells. `emulated_runtime.py` has the same numbers.
enum Kind { kCopy, kFill, kLaunch, kTorch, kWait, kReplay, kStreamWait, kRefused };
enum Memory { kPageable, kDevice, kPinned };

struct Record {
    int kind;
    int device;
    unsigned long long stream;
    int captured;  // 1: a node of a graph under capture
    int from, to;  // of a copy: kinds of memory
    unsigned long long bytes;
    char title[160];
};

// A ticket names the memory that was alive when work was queued. A replay has one of its own.
using Work = std::function<void(long replay_ticket)>;

struct Graph {
    std::vector<std::pair<Record, Work>> nodes;
};

struct Queued {
    Work work;
    std::function<bool()> is_ready;  // empty: always
    long replay_ticket;
};

struct Stream {
    int device;
    std::deque<Queued> queue;
    long queued = 0, done = 0;  // numbers of items since the stream was made
    bool is_running = false;
    Graph* capture = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    bool is_invalid = false;
    unsigned long long capture_id = 0;
    unsigned long long id = 0;
};

struct Event {
    Stream* stream = nullptr;
    long position = 0;
    Graph* graph = nullptr;  // the capture in which the event was recorded
};

struct Block {
    size_t size;
    int device;
    Memory memory;
    bool is_ours;  // false: the application's own memory, registered as pinned
};

enum Schedule { kLate, kAtOnce, kRandom };

struct State {
    std::recursive_mutex mutex;
    std::map<int, Stream*> default_streams;
    std::set<Stream*> streams;
    std::map<char*, Block> blocks;
    std::vector<Record> log;
    std::vector<std::string> faults;
    bool logs = false;
    Schedule schedule = kLate;
    std::mt19937 random;
    size_t device_memory = size_t(1) << 30;  // bytes that each device has
    size_t allocated[kDevices] = {};
    long (*new_ticket)() = nullptr;
};

using Lock = std::lock_guard<std::recursive_mutex>;

State& state();
int& current_device();
cudaError_t fail(cudaError_t error, const char* function);
void fault(const std::string& text);

Stream* stream_of(cudaStream_t stream);
Record record(Kind kind, const Stream* stream, const std::string& title);
void note(const Record& record);
void note_wait(const char* function, const Stream* stream);
// Queues work, or makes it a node of the stream's capture.
cudaError_t push(Stream* stream, Record record, Work work);
void push_queued(Stream* stream, Queued item);
void run_until(Stream* stream, long position);
void run_all();

Block* block_of(const void* address);
Memory memory_of(const void* address);
// Whether a call is refused, because a capture in global mode forbids it; the capture is then lost.
bool is_unsafe_now(const char* function);

}  // namespace emulated
