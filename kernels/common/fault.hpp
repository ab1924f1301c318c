#pragma once

namespace rmsnorm::kernels {

/// One deliberate mistake, a compile-time parameter of the kernels: a mutant is the product with
/// exactly this changed. The product instantiates `none` alone, for which every test of a fault
/// folds away.
enum class Fault { none };

}  // namespace rmsnorm::kernels
