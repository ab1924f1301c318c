// What a user of the installed library writes.
#include <ATen/ATen.h>
#include <rmsnorm/counters.hpp>
#include <rmsnorm/functional.hpp>
#include <rmsnorm/module.hpp>

#include <cmath>

int main() {
  rmsnorm::RMSNorm norm(rmsnorm::RMSNormOptions({257}).eps(1e-6));
  const at::Tensor x = at::ones({2, 257}).requires_grad_();
  const at::Tensor y = norm->forward(x);
  y.sum().backward();
  const double error = std::abs(y[1][256].item<double>() - 0.9999995);
  const bool counted = rmsnorm::call_counts().forward == 1 && rmsnorm::call_counts().backward == 1;
  const bool same = at::equal(y, rmsnorm::functional::rms_norm(x, norm->weight));
  return error < 1e-6 && counted && same && x.grad().defined() ? 0 : 1;
}
