#include "reference/gradcheck.hpp"

#include <ATen/ATen.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace rmsnorm::reference {

std::vector<at::Tensor> finite_differences(
    const std::function<double(const std::vector<at::Tensor>&)>& f,
    const std::vector<at::Tensor>& inputs) {
  constexpr double kStep = 1e-5;
  std::vector<at::Tensor> moved, differences;
  for (const at::Tensor& input : inputs) {
    if (input.scalar_type() != at::kDouble) {
      throw std::invalid_argument(
          std::string("finite_differences: every input must be float64; got ") +
          c10::toString(input.scalar_type()) + "; no other dtype has differences worth comparing");
    }
    moved.push_back(input.detach().clone().contiguous());
  }
  for (at::Tensor& input : moved) {
    at::Tensor difference = at::empty(input.sizes(), at::kDouble);
    at::Tensor flat = input.view(-1), flat_difference = difference.view(-1);
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      const double value = flat[i].item<double>();
      flat[i].fill_(value + kStep);
      const double above = f(moved);
      flat[i].fill_(value - kStep);
      const double below = f(moved);
      flat[i].fill_(value);
      flat_difference[i].fill_((above - below) / (2 * kStep));
    }
    differences.push_back(difference);
  }
  return differences;
}

double worst_relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor g = got.detach().cpu().to(at::kDouble), w = want.detach().cpu().to(at::kDouble);
  if (g.numel() == 0) return 0;
  const at::Tensor scale = at::maximum(w.abs(), w.square().mean().sqrt());
  const double worst = ((g - w).abs() / scale).max().item<double>();
  return worst == worst ? worst : std::numeric_limits<double>::infinity();
}

}  // namespace rmsnorm::reference
