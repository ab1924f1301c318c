#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace rmsnorm::reference {

/// Central differences of a scalar function, one element at a time: d f / d inputs[i] for each
/// input, float64. `inputs` are float64 and left as they were. Only float64 gives differences worth
/// comparing: with step h the error is about h^2 from the curve and 1e-16/h from rounding, 1e-10 at
/// the h = 1e-5 used here. Throws std::invalid_argument for inputs of another dtype.
std::vector<at::Tensor> finite_differences(
    const std::function<double(const std::vector<at::Tensor>&)>& f,
    const std::vector<at::Tensor>& inputs);

/// The largest |got - want| / max(|want|, rms(want)): relative, but to the gradient's scale where
/// an element is near zero. NaN anywhere gives infinity.
double worst_relative_error(const at::Tensor& got, const at::Tensor& want);

/// What gradcheck accepts. Four orders above the differences' own error, four below any real
/// mistake.
inline constexpr double kGradcheckBound = 1e-6;

}  // namespace rmsnorm::reference
