// Streams and events. A stream is a thread with a queue of tasks; an event counts how often a stream has passed it.
#pragma once

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

constexpr StreamId kDefaultStream = 0;
constexpr StreamId kPooledStreams = 32;  // a new stream is one of these in turn, as in CUDA

Stream& stream(StreamId id);
StreamId next_pooled_stream();
void wait_for_all_streams();

// The stream that this thread's calls go to.
inline thread_local StreamId current_stream = kDefaultStream;

}  // namespace device
