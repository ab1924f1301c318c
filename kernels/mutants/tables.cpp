#include <array>

#include "kernels/implementations.h"
#include "kernels/mutants/passes.hpp"

namespace rmsnorm::kernels {
namespace {

using Tables = std::array<rmsnorm_implementation, kFaultCount + 1>;

template <class Args>
const char* refusal(const Args* args) {
  if (is_mutant_dtype(args->x.dtype, args->gamma_dtype)) return nullptr;
  return "mutants take float32 and float16 with gamma of the same dtype, and bfloat16 with float32 "
         "gamma";
}

/// Everything but the passes is the product's.
Tables tables_from(const rmsnorm_implementation& product, ForwardPass (*forward)(Fault),
                   BackwardPass (*backward)(Fault)) {
  Tables tables;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto fault = static_cast<Fault>(i);
    rmsnorm_implementation& table = tables[i] = product;
    if (fault != Fault::none) {
      table.name = kFaults[i - 1].name;
      table.summary = kFaults[i - 1].what;
    }
    table.forward_refusal = refusal<rmsnorm_forward_args>;
    table.backward_refusal = refusal<rmsnorm_backward_args>;
    table.forward = forward(fault);
    table.backward = backward(fault);
  }
  return tables;
}

bool is_in_a_kernel(Fault fault) {
  return fault == Fault::none || forward_fault(fault) == fault || backward_fault(fault) == fault;
}

}  // namespace

const rmsnorm_implementation* find_mutant(Fault fault, std::int32_t device_type) {
  if (!is_in_a_kernel(fault)) return nullptr;
  if (device_type == RMSNORM_CPU) {
    static const Tables tables =
        tables_from(*rmsnorm_rowwise_cpu(), cpu::mutant_forward, cpu::mutant_backward);
    return &tables[static_cast<std::size_t>(fault)];
  }
  if (device_type == RMSNORM_CUDA && cuda::product() != nullptr) {
    static const Tables tables =
        tables_from(*cuda::product(), cuda::mutant_forward, cuda::mutant_backward);
    return &tables[static_cast<std::size_t>(fault)];
  }
  return nullptr;
}

}  // namespace rmsnorm::kernels
