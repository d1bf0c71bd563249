// What tests set: delays, limits, faults. And what they read: the bytes that are held and were copied.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace device {

struct Settings {
  std::atomic<double> to_host{0}, to_device{0};  // bytes per second of a copy; 0: no limit
  std::atomic<double> latency{0}, jitter{0};     // seconds of a copy: at least, and drawn on top
  std::atomic<double> compute{0};                // seconds of an operator
  std::atomic<int64_t> fail_after{-1};           // copies until one fails; -1: none
  std::atomic<int64_t> fail_operator_after{-1};  // operators until one fails; -1: none
  std::atomic<int64_t> device_limit{-1}, pinned_limit{-1};  // bytes; -1: no limit
  std::atomic<uint64_t> seed{0}, seed_count{0};  // of the jitter; a new seed begins all streams anew
};

struct Counters {
  std::atomic<int64_t> device{0}, device_peak{0}, pinned{0}, pinned_peak{0};  // bytes that are held
  std::atomic<int64_t> copied_to_host{0}, copied_to_device{0};                // bytes, by copies of the program
  std::atomic<int64_t> delayed{0};  // microseconds that copies were told to sleep
  std::atomic<int64_t> in_stream{0}, on_host{0};  // operators: in a stream's thread, or on the host after a wait
};

inline Settings settings;
inline Counters counters;

// Adds bytes to a counter with a peak, unless they pass the limit.
inline bool hold(std::atomic<int64_t>& held, std::atomic<int64_t>& peak, int64_t bytes, int64_t limit) {
  int64_t now = held += bytes;
  if (limit >= 0 && now > limit) {
    held -= bytes;
    return false;
  }
  for (int64_t seen = peak; seen < now && !peak.compare_exchange_weak(seen, now);) {
  }
  return true;
}

// The first error of a stream's thread. It is raised at each wait until a test clears it, as a CUDA context would.
class Failure {
 public:
  void set(const std::string& message) {
    std::lock_guard lock(mutex_);
    if (message_.empty()) message_ = message;
  }
  void clear() {
    std::lock_guard lock(mutex_);
    message_.clear();
  }
  std::string message() {
    std::lock_guard lock(mutex_);
    return message_;
  }

 private:
  std::mutex mutex_;
  std::string message_;
};

inline Failure failure;

// Raises the error of a stream's thread, if there is one.
void check_failure();

// While the device is stalled, no stream begins a task.
class Stall {
 public:
  void set(bool stalled) {
    {
      std::lock_guard lock(mutex_);
      stalled_ = stalled;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !stalled_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stalled_ = false;
};

inline Stall stall;

}  // namespace device
