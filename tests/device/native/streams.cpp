#include "streams.h"

#include <array>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>

#include "settings.h"

namespace device {

Stream::Stream(StreamId id) : id_(id) {
  std::thread([this] { run(); }).detach();  // streams live as long as the process
}

void Stream::push(Task task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  has_task_.notify_one();
}

void Stream::wait_until_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return tasks_.empty() && !is_busy_; });
}

bool Stream::is_idle() {
  std::lock_guard lock(mutex_);
  return tasks_.empty() && !is_busy_;
}

void Stream::run() {
  current_device = device_of(id_);
  current_streams[current_device] = id_;
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      has_task_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
      is_busy_ = true;
    }
    stall.wait();
    try {
      task();
    } catch (const std::exception& error) {
      failure.set(error.what());
    }
    task = nullptr;  // what it keeps alive is freed before anyone sees the stream idle
    {
      std::lock_guard lock(mutex_);
      is_busy_ = false;
    }
    idle_.notify_all();
  }
}

// Each stream draws from its own generator, so the order in which threads run does not change the delays of a seed.
void Stream::take_new_seed() {
  if (uint64_t count = settings.seed_count; count != seed_count_) {
    seed_count_ = count;
    draws_.seed(settings.seed * 1000003 + static_cast<uint64_t>(id_));
  }
}

void Stream::pause_for_copy(int64_t bytes, double bytes_per_second) {
  take_new_seed();
  double seconds = settings.latency;
  if (bytes_per_second > 0) seconds += static_cast<double>(bytes) / bytes_per_second;
  if (double most = settings.jitter; most > 0) seconds += std::uniform_real_distribution<double>(0, most)(draws_);
  counters.delayed += static_cast<int64_t>(seconds * 1e6);
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

uint64_t Event::ask() {
  std::lock_guard lock(mutex_);
  return ++asked_;
}

uint64_t Event::asked() {
  std::lock_guard lock(mutex_);
  return asked_;
}

void Event::pass(uint64_t number) {
  {
    std::lock_guard lock(mutex_);
    if (number > done_) done_ = number;
    at_ = Clock::now();
  }
  passed_.notify_all();
}

void Event::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  passed_.wait(lock, [&] { return done_ >= number; });
}

bool Event::has_passed(uint64_t number) {
  std::lock_guard lock(mutex_);
  return done_ >= number;
}

Clock::time_point Event::passed_at() {
  std::lock_guard lock(mutex_);
  return at_;
}

namespace {

struct Pool {
  std::array<std::unique_ptr<Stream>, kMostDevices * kStreams> streams;
  std::array<std::once_flag, kMostDevices * kStreams> made;
};

Pool& pool() {
  static Pool* pool = new Pool;  // never destroyed: threads may still run when the process exits
  return *pool;
}

std::atomic<uint64_t> used_streams{0};

}  // namespace

Stream& stream(StreamId id) {
  auto& all = pool();
  std::call_once(all.made.at(id), [&] { all.streams[id] = std::make_unique<Stream>(id); });
  return *all.streams[id];
}

StreamId next_pooled_stream(int device) {
  return default_stream(device) + 1 + static_cast<StreamId>(used_streams++ % kPooledStreams);
}

void wait_for_all_streams(int device) {
  StreamId first = default_stream(device);
  for (StreamId id = first; id < first + kStreams; ++id) stream(id).wait_until_idle();
}

int device_number() {
  static const int number = [] {
    const char* given = std::getenv("DEVICE_COUNT");
    return given ? std::clamp(std::atoi(given), 1, kMostDevices) : 1;
  }();
  return number;
}

}  // namespace device
