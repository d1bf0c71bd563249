// Shows the device to torch as PrivateUse1: allocators, the guard that streams and events go through, and hooks.
#include "torch_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>

#include "memory.h"
#include "settings.h"
#include "streams.h"

namespace device {

void check_failure() {
  auto message = failure.message();
  TORCH_CHECK(message.empty(), "simulated device: ", message);
}

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

c10::Device here() { return c10::Device(kType, static_cast<c10::DeviceIndex>(current_device)); }

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, here()};
    void* shown = device::allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, shown, "simulated device: out of memory, asked for ", bytes, " bytes");
    return {shown, shown, &device::release, here()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &device::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    stream(current_stream()).wait_until_idle();
    std::memcpy(reachable(to), reachable(from), bytes);
  }
} device_allocator;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(c10::kCPU)};
    void* address = allocate_pinned(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, address, "simulated device: out of pinned memory, asked for ", bytes, " bytes");
    return {address, address, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} pinned_allocator;

// torch's handle of an event; tasks share the event, because a handle may be destroyed before its stream has come to it.
using EventHandle = std::shared_ptr<Event>;

Event& event_of(void* handle) { return **static_cast<EventHandle*>(handle); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device next) const override {
    auto before = here();
    setDevice(next);
    return before;
  }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device next) const override { current_device = index_of(next); }
  void uncheckedSetDevice(c10::Device next) const noexcept override { current_device = index_of(next); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_number()); }

  c10::Stream getStream(c10::Device at) const override { return shown(current_streams[index_of(at)]); }
  c10::Stream getDefaultStream(c10::Device at) const override { return shown(default_stream(index_of(at))); }
  c10::Stream getNewStream(c10::Device at, int) const override { return shown(next_pooled_stream(index_of(at))); }
  c10::Stream getStreamFromGlobalPool(c10::Device at, bool) const override { return getNewStream(at, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return shown(std::exchange(current_streams[device_of(next.id())], next.id()));
  }
  bool queryStream(const c10::Stream& each) const override { return stream(each.id()).is_idle(); }
  void synchronizeStream(const c10::Stream& each) const override {
    stream(each.id()).wait_until_idle();
    check_failure();
  }
  void synchronizeDevice(c10::DeviceIndex at) const override {
    wait_for_all_streams(at < 0 ? current_device : at);
    check_failure();
  }

  void record(void** handle, const c10::Stream& at, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*handle) *handle = new EventHandle(std::make_shared<Event>());
    EventHandle event = *static_cast<EventHandle*>(*handle);
    uint64_t number = event->ask();
    stream(at.id()).push([event, number] { event->pass(number); });
  }
  void block(void* handle, const c10::Stream& waiting) const override {
    if (!handle) return;
    EventHandle event = *static_cast<EventHandle*>(handle);
    uint64_t number = event->asked();
    stream(waiting.id()).push([event, number] { event->wait(number); });
  }
  bool queryEvent(void* handle) const override { return !handle || event_of(handle).has_passed(event_of(handle).asked()); }
  void synchronizeEvent(void* handle) const override {
    if (handle) event_of(handle).wait(event_of(handle).asked());
    check_failure();
  }
  void destroyEvent(void* handle, c10::DeviceIndex) const noexcept override { delete static_cast<EventHandle*>(handle); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(event_of(to).passed_at() - event_of(from).passed_at()).count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& user) const override {
    record_stream(data.get(), user.id());
  }

 private:
  static int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }
  static c10::Stream shown(StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(device_of(id))), id);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_number()); }
  c10::DeviceIndex getCurrentDevice() const override { return here().index(); }
  void setCurrentDevice(c10::DeviceIndex next) const override { current_device = next; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex next) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(current_device, next));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex next) const override {
    return next < 0 ? here().index() : exchangeDevice(next);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Device getDeviceFromPtr(void* address) const override {
    return c10::Device(kType, static_cast<c10::DeviceIndex>(device_of(owner(address))));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator generator = at::detail::getDefaultCPUGenerator();
    return generator;
  }
  // FSDP2 frees the storage of a gathered parameter, and fills it again.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = device_allocator.allocate(bytes);
    if (size_t kept = std::min(bytes, storage.nbytes())) device_allocator.copy_data(data.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// Runs when torch loads the library.
const bool is_registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &device_allocator);
  return true;
}();

}  // namespace

c10::Allocator* torch_allocator() { return &device_allocator; }

}  // namespace device
