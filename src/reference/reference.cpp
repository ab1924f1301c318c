#include "reference/reference.hpp"

#include <ATen/ATen.h>

namespace rmsnorm::reference {
namespace {

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return at::rsqrt(x.square().mean(-1, true) + eps);
}

at::Tensor times(const at::Tensor& values, const at::Tensor& gamma) {
  return gamma.defined() ? values * gamma.to(values.scalar_type()) : values;
}

}  // namespace

at::Tensor forward(const at::Tensor& x, const at::Tensor& gamma, double eps) {
  const at::Tensor wide = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return times(wide * inverse_rms(wide, eps), gamma).to(x.scalar_type());
}

Gradients closed_form_backward(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy,
                               double eps) {
  const at::Tensor r = inverse_rms(x, eps);
  const at::Tensor u = times(dy, gamma);
  Gradients gradients;
  gradients.dx = r * u - x * r.pow(3) * (u * x).mean(-1, true);
  if (gamma.defined()) gradients.dgamma = (dy * x * r).sum(0);
  return gradients;
}

Expected expected_y(const at::Tensor& x, const at::Tensor& gamma, double eps) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor y = times(wide * inverse_rms(wide, eps), gamma);
  return {y, y.abs()};
}

Expected expected_rstd(const at::Tensor& x, double eps) {
  const at::Tensor r = inverse_rms(x.to(at::kDouble), eps).squeeze(-1);
  return {r, r};
}

Expected expected_dx(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy,
                     double eps) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor r = inverse_rms(wide, eps);
  const at::Tensor direct = r * times(dy.to(at::kDouble), gamma);
  // x*r^3*mean(u*x) with the r of u inside the mean: r*u is already there.
  const at::Tensor x_hat = wide * r;
  const at::Tensor projection = x_hat * (direct * x_hat).mean(-1, true);
  // The mean's own addends may cancel too: its error follows the mean of their absolute values.
  const at::Tensor projection_magnitude = x_hat.abs() * (direct * x_hat).abs().mean(-1, true);
  return {direct - projection, direct.abs() + projection_magnitude};
}

Expected expected_dgamma(const at::Tensor& x, const at::Tensor& dy, double eps) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor products = dy.to(at::kDouble) * (wide * inverse_rms(wide, eps));
  return {products.sum(0), products.abs().sum(0)};
}

}  // namespace rmsnorm::reference
