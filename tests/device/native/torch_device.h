// The allocator of the device's tensors, for the operators that make some.
#pragma once

#include <c10/core/Allocator.h>

#include <optional>
#include <utility>

#include "streams.h"

namespace device {

c10::Allocator* torch_allocator();

// Lets this thread's calls go to a device, until the end of a scope.
class OnDevice {
 public:
  explicit OnDevice(std::optional<c10::Device> device)
      : before_(std::exchange(current_device, device && device->has_index() ? device->index() : current_device)) {}
  ~OnDevice() { current_device = before_; }
  OnDevice(const OnDevice&) = delete;

 private:
  int before_;
};

}  // namespace device
