// The allocator of the device's tensors, for the operators that make some.
#pragma once

#include <c10/core/Allocator.h>

namespace device {

c10::Allocator* torch_allocator();

}  // namespace device
