#include <array>

#include "kernels/cpu/tuned.hpp"
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

/// Of tuned's mutants; `kLike` takes the same dtypes.
template <Fault kLike, class Args>
const char* tuned_refusal(const Args* args) {
  if (is_tuned_mutant_dtype(kLike, args->x.dtype, args->gamma_dtype)) return nullptr;
  if constexpr (kLike == Fault::none)
    return "tuned without a fault takes float32 and float16 with gamma of the same dtype";
  if constexpr (needs_16_bits(kLike))
    return "this mutant of tuned takes float16 with gamma of the same dtype: its fault needs 16 "
           "bits";
  return "this mutant of tuned takes float32 with gamma of the same dtype";
}

template <Fault kLike>
void refuse_like(rmsnorm_implementation& table) {
  table.forward_refusal = tuned_refusal<kLike, rmsnorm_forward_args>;
  table.backward_refusal = tuned_refusal<kLike, rmsnorm_backward_args>;
}

void set_refusals(rmsnorm_implementation& table, Original original, Fault fault) {
  if (original == Original::rowwise) {
    table.forward_refusal = refusal<rmsnorm_forward_args>;
    table.backward_refusal = refusal<rmsnorm_backward_args>;
  } else if (fault == Fault::none) {
    refuse_like<Fault::none>(table);
  } else if (needs_16_bits(fault)) {
    refuse_like<Fault::sum_in_16_bits>(table);
  } else {
    refuse_like<Fault::sum_for_mean>(table);
  }
}

/// Everything but the passes and what they refuse is the original's.
Tables tables_of(Original original, std::int32_t device_type, ForwardPass (*forward)(Fault),
                 BackwardPass (*backward)(Fault)) {
  Tables tables{};
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto fault = static_cast<Fault>(i);
    rmsnorm_implementation& table = tables[i] = *find_original(original, device_type);
    if (fault != Fault::none) {
      table.name = kFaults[i - 1].name;
      table.summary = kFaults[i - 1].what;
    }
    set_refusals(table, original, fault);
    table.forward = forward(fault);
    table.backward = backward(fault);
  }
  return tables;
}

const Tables* tables_of(Original original, std::int32_t device_type) {
  if (find_original(original, device_type) == nullptr) return nullptr;
  const bool tuned = original == Original::tuned;
  if (device_type == RMSNORM_CPU) {
    static const Tables rowwise_tables =
        tables_of(Original::rowwise, RMSNORM_CPU, cpu::mutant_forward, cpu::mutant_backward);
    static const Tables tuned_tables = tables_of(
        Original::tuned, RMSNORM_CPU, cpu::tuned_mutant_forward, cpu::tuned_mutant_backward);
    return tuned ? &tuned_tables : &rowwise_tables;
  }
  static const Tables rowwise_tables =
      tables_of(Original::rowwise, RMSNORM_CUDA, cuda::mutant_forward, cuda::mutant_backward);
  static const Tables tuned_tables = tables_of(
      Original::tuned, RMSNORM_CUDA, cuda::tuned_mutant_forward, cuda::tuned_mutant_backward);
  return tuned ? &tuned_tables : &rowwise_tables;
}

}  // namespace

bool has_mutant(Original original, Fault fault) {
  if (fault == Fault::none) return true;
  if (original == Original::tuned) return is_tuned_fault(fault);
  return forward_fault(fault) == fault || backward_fault(fault) == fault;
}

const rmsnorm_implementation* find_original(Original original, std::int32_t device_type) {
  if (device_type == RMSNORM_CUDA) return cuda::product(original);
  if (device_type != RMSNORM_CPU) return nullptr;
  return original == Original::tuned ? cpu::tuned_table(cpu::Isa::generic) : rmsnorm_rowwise_cpu();
}

const rmsnorm_implementation* find_mutant(Original original, Fault fault,
                                          std::int32_t device_type) {
  if (!has_mutant(original, fault)) return nullptr;
  const Tables* tables = tables_of(original, device_type);
  return tables == nullptr ? nullptr : &(*tables)[static_cast<std::size_t>(fault)];
}

}  // namespace rmsnorm::kernels
