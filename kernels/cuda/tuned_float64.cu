#include "kernels/cuda/tuned_backward_launch.cuh"
#include "kernels/cuda/tuned_forward_launch.cuh"

namespace rmsnorm::kernels::cuda {

Launchers float64_launchers() {
  return {launch_forward<double, double, Fault::none>,
          launch_backward<double, double, Fault::none>};
}

}  // namespace rmsnorm::kernels::cuda
