// What the tests call, by ctypes.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "settings.h"

using device::counters;
using device::settings;

extern "C" {

// Sets a number; returns false if there is no such setting.
bool device_set(const char* name, double value) {
  static const std::map<std::string, std::atomic<double>*> numbers{
      {"to_host", &settings.to_host}, {"to_device", &settings.to_device}, {"latency", &settings.latency},
      {"jitter", &settings.jitter},   {"compute", &settings.compute},
  };
  static const std::map<std::string, std::atomic<int64_t>*> counts{
      {"fail_after", &settings.fail_after},
      {"fail_operator_after", &settings.fail_operator_after},
      {"device_limit", &settings.device_limit},
      {"pinned_limit", &settings.pinned_limit},
  };
  if (auto number = numbers.find(name); number != numbers.end()) {
    *number->second = value;
  } else if (auto count = counts.find(name); count != counts.end()) {
    *count->second = static_cast<int64_t>(value);
  } else if (std::strcmp(name, "seed") == 0) {
    settings.seed = static_cast<uint64_t>(value);
    ++settings.seed_count;
  } else if (std::strcmp(name, "stalled") == 0) {
    device::stall.set(value != 0);
  } else {
    return false;
  }
  return true;
}

// Returns a counter; -1 if there is none of the name.
int64_t device_count(const char* name) {
  static const std::map<std::string, std::atomic<int64_t>*> counts{
      {"device", &counters.device},
      {"device_peak", &counters.device_peak},
      {"pinned", &counters.pinned},
      {"pinned_peak", &counters.pinned_peak},
      {"copied_to_host", &counters.copied_to_host},
      {"copied_to_device", &counters.copied_to_device},
      {"delayed_microseconds", &counters.delayed},
      {"in_stream", &counters.in_stream},
      {"on_host", &counters.on_host},
  };
  auto count = counts.find(name);
  return count == counts.end() ? -1 : count->second->load();
}

// Lets peaks begin at what is held now, and sums at 0.
void device_reset_counters() {
  counters.device_peak = counters.device.load();
  counters.pinned_peak = counters.pinned.load();
  counters.copied_to_host = counters.copied_to_device = counters.delayed = counters.in_stream = counters.on_host = 0;
}

void device_clear_failure() { device::failure.clear(); }

}  // extern "C"
