#include "kernels/cuda/tuned_backward_launch.cuh"
#include "kernels/cuda/tuned_forward_launch.cuh"

namespace rmsnorm::kernels::cuda {

Launchers bfloat16_launchers(bool float32_gamma) {
  if (float32_gamma)
    return {launch_forward<__nv_bfloat16, float, Fault::none>,
            launch_backward<__nv_bfloat16, float, Fault::none>};
  return {launch_forward<__nv_bfloat16, __nv_bfloat16, Fault::none>,
          launch_backward<__nv_bfloat16, __nv_bfloat16, Fault::none>};
}

}  // namespace rmsnorm::kernels::cuda
