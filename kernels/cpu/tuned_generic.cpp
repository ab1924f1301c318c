#include "kernels/cpu/vector_generic.hpp"

#define RMSNORM_ISA generic
#include "kernels/cpu/tuned_rows.hpp"

namespace rmsnorm::kernels::cpu::generic {

const TunedFunctions kFunctions = {tuned_forward<Fault::none>, tuned_backward<Fault::none>};

}  // namespace rmsnorm::kernels::cpu::generic
