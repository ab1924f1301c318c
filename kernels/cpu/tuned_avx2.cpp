#include "kernels/cpu/vector_avx2.hpp"

#define RMSNORM_ISA avx2
#include "kernels/cpu/tuned_rows.hpp"

namespace rmsnorm::kernels::cpu::avx2 {

const TunedFunctions kFunctions = {tuned_forward<Fault::none>, tuned_backward<Fault::none>};

}  // namespace rmsnorm::kernels::cpu::avx2
