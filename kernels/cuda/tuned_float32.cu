#include "kernels/cuda/tuned_backward_launch.cuh"
#include "kernels/cuda/tuned_forward_launch.cuh"

namespace rmsnorm::kernels::cuda {

Launchers float32_launchers() {
  return {launch_forward<float, float, Fault::none>, launch_backward<float, float, Fault::none>};
}

}  // namespace rmsnorm::kernels::cuda
