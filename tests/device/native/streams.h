// Streams and events. A stream is a thread with a queue of tasks; an event counts how often a stream has passed it.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace device {

using Task = std::function<void()>;
using StreamId = int64_t;
using Clock = std::chrono::steady_clock;

class Stream {
 public:
  explicit Stream(StreamId id);
  void push(Task task);
  void wait_until_idle();
  bool is_idle();

  // Sleeps as long as a copy of so many bytes takes. Called by tasks of this stream only.
  void pause_for_copy(int64_t bytes, double bytes_per_second);

 private:
  void run();
  void take_new_seed();

  StreamId id_;
  std::mutex mutex_;
  std::condition_variable has_task_, idle_;
  std::deque<Task> tasks_;
  bool is_busy_ = false;
  std::mt19937_64 draws_;
  uint64_t seed_count_ = ~uint64_t{0};
};

class Event {
 public:
  // Returns the number of this record: how often the event will have passed when `pass` has this number.
  uint64_t ask();
  uint64_t asked();
  void pass(uint64_t number);
  void wait(uint64_t number);
  bool has_passed(uint64_t number);
  Clock::time_point passed_at();

 private:
  std::mutex mutex_;
  std::condition_variable passed_;
  uint64_t asked_ = 0, done_ = 0;
  Clock::time_point at_;
};

constexpr int kMostDevices = 2;
constexpr StreamId kPooledStreams = 32;  // a new stream is one of these in turn, as in CUDA
constexpr StreamId kStreams = kPooledStreams + 1;  // of a device; the first is its default stream

constexpr int device_of(StreamId id) { return static_cast<int>(id / kStreams); }
constexpr StreamId default_stream(int device) { return device * kStreams; }

// Returns the number of devices: DEVICE_COUNT in the environment, else 1.
int device_number();

Stream& stream(StreamId id);
StreamId next_pooled_stream(int device);
void wait_for_all_streams(int device);

// The device that this thread's calls go to, and their stream on each device.
inline thread_local int current_device = 0;
inline thread_local std::array<StreamId, kMostDevices> current_streams{default_stream(0), default_stream(1)};

inline StreamId current_stream() { return current_streams[current_device]; }

}  // namespace device
