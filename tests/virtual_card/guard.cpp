// torch built for CPUs has no guard for CUDA devices and refuses to index a tensor that says it is on one.
// This one does nothing: there is one device, cuda:0, and it is always the current one.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

struct OneCard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  static constexpr c10::DeviceIndex count = 1;
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, 0}; }
  void setDevice(c10::Device) const override {}
  c10::DeviceIndex deviceCount() const noexcept override { return count; }
};

C10_REGISTER_GUARD_IMPL(CUDA, OneCard)

}  // namespace
