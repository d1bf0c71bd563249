// Operators of the device: copies, empty tensors, views, and all others by the CPU's kernels.
//
// An operator is a task of the current stream. Its results are made at once, with the shapes that torch's meta kernel
// tells, and hold nothing before the task has run. So what an operator reads is read when its stream comes to it, as on
// a real device. An operator whose shapes depend on values, or that has no meta kernel, runs on the host after a wait.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "memory.h"
#include "settings.h"
#include "streams.h"
#include "torch_device.h"

namespace device {
namespace {

using Stack = torch::jit::Stack;
using c10::IValue;

// Tells whether an operator that runs on the host copies its operands now: such copies cost nothing and do not fail.
thread_local bool is_copying_operands = false;

// ---- Views of tensors for a stream's thread ----

// Returns a CPU tensor on the same memory. It keeps host memory alive, and device memory not, as on a real device.
at::Tensor reached(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  void* data = tensor.numel() ? reachable(tensor.const_data_ptr()) : nullptr;
  TORCH_CHECK(data || !tensor.numel(), "simulated device: a tensor has no memory of the device");
  return at::from_blob(data, tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

struct WithoutAutograd {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autograd{c10::autograd_dispatch_keyset};
};

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  WithoutAutograd guard;
  to.copy_(from);
}

// ---- Copies ----

void fail_if_due(std::atomic<int64_t>& left, const char* message) {
  if (left >= 0 && left-- == 0) throw std::runtime_error(message);
}

// Lets a stream wait until another has come as far as it is now.
void wait_for(Stream& waiting, Stream& other) {
  auto event = std::make_shared<Event>();
  uint64_t number = event->ask();
  other.push([event, number] { event->pass(number); });
  waiting.push([event, number] { event->wait(number); });
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  check_failure();
  if (dst.numel() == 0) return dst;
  bool from_host = self.is_cpu(), to_host = dst.is_cpu();
  bool returns_early = !to_host || (non_blocking && dst.is_pinned());
  // Pageable memory is staged, as in CUDA: the caller may change it at once.
  bool is_staged = from_host && !(non_blocking && self.is_pinned());
  auto source = reached(is_staged ? self.clone() : self).expand(dst.sizes()), target = reached(dst);
  auto bytes = static_cast<int64_t>(dst.numel() * dst.element_size());
  bool costs = !is_copying_operands;
  OnDevice scope(from_host ? dst.device() : self.device());
  auto& queue = stream(current_stream());
  auto other = !from_host && !to_host && self.device() != dst.device() ? current_streams[dst.device().index()] : -1;
  if (other >= 0) wait_for(queue, stream(other));
  queue.push([=, &queue] {
    if (costs) {
      fail_if_due(settings.fail_after, "a copy failed, as the test asked");
      if (from_host || to_host) queue.pause_for_copy(bytes, from_host ? settings.to_device : settings.to_host);
      if (from_host) counters.copied_to_device += bytes;
      if (to_host) counters.copied_to_host += bytes;
    }
    copy_values(target, source);
  });
  if (other >= 0) wait_for(stream(other), queue);
  if (!returns_early) {
    queue.wait_until_idle();
    check_failure();
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::native::resize_(dst, self.sizes());
  return copy_from(self, dst, false);
}

// ---- Empty tensors and views ----

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  OnDevice scope(device);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  return at::detail::empty_generic(sizes, torch_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  OnDevice scope(device);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  return at::detail::empty_strided_generic(sizes, strides, torch_allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  auto count = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return set_storage(self, std::move(storage), 0, {c10::SymInt(count)}, {c10::SymInt(1)});
}

at::Tensor& set_as(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}

void record_tensor(at::Tensor& self, c10::Stream user) { record_stream(self.storage().data_ptr().get(), user.id()); }

// ---- All other operators ----

using MapTensor = std::function<at::Tensor(const at::Tensor&)>;

// Returns a value with all tensors in it mapped.
IValue mapped(const IValue& value, const MapTensor& map) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(map(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(map(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      list.push_back(each && each->defined() ? std::optional(map(*each)) : each);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::kCPU);
  return value;
}

Stack mapped(const Stack& values, const MapTensor& map) {
  Stack result;
  for (const IValue& each : values) result.push_back(mapped(each, map));
  return result;
}

at::Tensor meta_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

// Tells whether the operators that run on the host are printed.
bool is_traced() {
  static const bool traced = std::getenv("DEVICE_TRACE") != nullptr;
  return traced;
}

// Operators whose meta kernels do not tell all, or that torch calls for a value on the host.
bool runs_on_host(const c10::OperatorHandle& op) {
  static const std::set<std::string> names{
      "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2",
      "aten::index.Tensor", "aten::bernoulli_.float", "aten::native_dropout", "aten::randperm",
  };
  const auto& schema = op.schema();
  if (schema.name().find("rand") != std::string::npos) return true;
  auto name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  if (names.contains(name)) return true;
  for (const auto& each : schema.returns()) {
    if (each.type()->kind() != c10::TypeKind::TensorType) return true;
    if (each.alias_info() && !each.alias_info()->isWrite()) return true;  // a view
  }
  return schema.returns().empty();
}

// Returns the argument that a return of an in-place operator is, or -1.
int64_t written_argument(const c10::FunctionSchema& schema, size_t index) {
  const auto* alias = schema.returns()[index].alias_info();
  if (!alias) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* other = schema.arguments()[i].alias_info();
    if (other && other->beforeSet() == alias->beforeSet()) return static_cast<int64_t>(i);
  }
  return -1;
}

bool is_on_device(const Stack& arguments) {
  for (const IValue& each : arguments) {
    if (each.isTensor() && each.toTensor().defined() && !each.toTensor().is_privateuseone() && each.toTensor().dim() > 0) {
      return false;
    }
  }
  return true;
}

// Returns what torch's meta kernel makes of an operator's arguments; nothing if there is none.
std::optional<Stack> shapes_of_results(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack shapes = mapped(arguments, [](const at::Tensor& each) { return each.is_privateuseone() ? meta_of(each) : each; });
  for (IValue& each : shapes) {
    if (each.isDevice()) each = c10::Device(c10::kMeta);
  }
  try {
    WithoutAutograd guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &shapes);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return shapes;
}

// Returns the tensors of an operator's results: new ones, or the arguments that it writes. Nothing if torch does not
// tell their shapes, or if a written argument must be resized.
std::optional<std::vector<at::Tensor>> tensors_of_results(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto& schema = op.schema();
  bool is_in_place = schema.name().ends_with("_") && schema.overload_name().find("out") == std::string::npos;
  auto shapes = is_in_place ? std::nullopt : shapes_of_results(op, arguments);
  if (!is_in_place && !shapes) return std::nullopt;
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    int64_t written = written_argument(schema, i);
    if (written >= 0) {
      const at::Tensor& target = arguments[written].toTensor();
      if (shapes && (*shapes)[i].toTensor().sizes() != target.sizes()) return std::nullopt;
      results.push_back(target);
      continue;
    }
    const at::Tensor& shape = (*shapes)[i].toTensor();
    results.push_back(shape.defined() ? at::detail::empty_strided_generic(shape.sizes(), shape.strides(), torch_allocator(),
                                                                          kKeys, shape.scalar_type())
                                      : at::Tensor());
  }
  return results;
}

void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  ++counters.on_host;
  if (is_traced()) std::cerr << "on the host: " << op.operator_name() << std::endl;
  struct Copying {
    bool before = std::exchange(is_copying_operands, true);
    ~Copying() { is_copying_operands = before; }
  } copying;
  at::native::cpu_fallback(op, stack);
}

// Returns the device of the first tensor that is on one.
std::optional<c10::Device> device_of(const Stack& arguments) {
  for (const IValue& each : arguments) {
    if (each.isTensor() && each.toTensor().defined() && each.toTensor().is_privateuseone()) return each.toTensor().device();
    if (!each.isTensorList()) continue;
    for (const at::Tensor& tensor : each.toTensorVector()) {
      if (tensor.is_privateuseone()) return tensor.device();
    }
  }
  return std::nullopt;
}

void run_in_stream(const c10::OperatorHandle& op, Stack* stack) {
  check_failure();
  const auto& schema = op.schema();
  size_t count = schema.arguments().size();
  Stack arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  OnDevice scope(device_of(arguments));
  if (runs_on_host(op) || !is_on_device(arguments)) return run_on_host(op, stack);
  auto results = tensors_of_results(op, arguments);
  if (!results) return run_on_host(op, stack);
  bool writes_arguments = written_argument(schema, 0) >= 0;
  ++counters.in_stream;
  Stack operands = mapped(arguments, reached);
  std::vector<at::Tensor> targets;
  for (const at::Tensor& each : *results) targets.push_back(reached(each));
  stream(current_stream()).push([op, operands, targets, writes_arguments] {
    fail_if_due(settings.fail_operator_after, "an operator failed, as the test asked");
    if (double seconds = settings.compute; seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    WithoutAutograd guard;
    Stack values = operands;
    op.callBoxed(&values);
    if (writes_arguments) return;
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].defined()) targets[i].copy_(values[i].toTensor());
    }
  });
  stack->erase(stack->end() - static_cast<int64_t>(count), stack->end());
  for (at::Tensor& each : *results) stack->emplace_back(std::move(each));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_in_stream>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", set_as);
  library.impl("record_stream", record_tensor);
}

// Autocast for the operators that the tests' networks have.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the macro wants this name
  using at::autocast::CastPolicy;
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

}  // namespace
}  // namespace device
