#include "kernels/cpu/vector_avx512.hpp"

#define RMSNORM_ISA avx512
#include "kernels/cpu/tuned_rows.hpp"

namespace rmsnorm::kernels::cpu::avx512 {

const TunedFunctions kFunctions = {tuned_forward<Fault::none>, tuned_backward<Fault::none>};

}  // namespace rmsnorm::kernels::cpu::avx512
