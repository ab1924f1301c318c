#include "operator/streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace rmsnorm {

void* current_stream(const c10::Device& device) {
  if (!device.is_cuda()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void synchronize_current_stream() {
  const c10::impl::VirtualGuardImpl impl(c10::DeviceType::CUDA);
  impl.synchronizeStream(impl.getStream(impl.getDevice()));
}

}  // namespace rmsnorm
