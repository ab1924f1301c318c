#include "kernels/cuda/tuned_backward_launch.cuh"
#include "kernels/cuda/tuned_forward_launch.cuh"

namespace rmsnorm::kernels::cuda {

Launchers float16_launchers(bool float32_gamma) {
  if (float32_gamma)
    return {launch_forward<__half, float, Fault::none>,
            launch_backward<__half, float, Fault::none>};
  return {launch_forward<__half, __half, Fault::none>,
          launch_backward<__half, __half, Fault::none>};
}

}  // namespace rmsnorm::kernels::cuda
