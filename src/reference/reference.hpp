#pragma once

#include <ATen/core/Tensor.h>

// The oracle: tensor operations only, no code of the subject. float64 throughout, whatever the
// dtype of the inputs.

namespace rmsnorm::reference {

/// The tutorial's readable forward: float64 for float64 x, else float32; cast once to x's dtype.
/// Differentiable. x: [rows, cols]; gamma: [cols] or undefined.
at::Tensor forward(const at::Tensor& x, const at::Tensor& gamma, double eps);

struct Gradients {
  at::Tensor dx, dgamma;
};

/// The closed form, in the dtype of the arguments: dx = r*u - x*r^3*mean(u*x), dgamma = sum over
/// rows of dy*x*r. dgamma is undefined without gamma.
Gradients closed_form_backward(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy,
                               double eps);

/// A wanted result and, per element, the sum of the absolute values of the terms it is a sum of.
/// float64.
struct Expected {
  at::Tensor want, magnitude;
};

/// y of a slice of rows; float64 from inputs as rounded to their dtype.
Expected expected_y(const at::Tensor& x, const at::Tensor& gamma, double eps);
/// rstd [rows] of a slice.
Expected expected_rstd(const at::Tensor& x, double eps);
/// dx of a slice of rows.
Expected expected_dx(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy,
                     double eps);
/// What a slice of rows adds to dgamma [cols]; the slices' wants and magnitudes sum up.
Expected expected_dgamma(const at::Tensor& x, const at::Tensor& dy, double eps);

}  // namespace rmsnorm::reference
