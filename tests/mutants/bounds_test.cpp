#include <ATen/ATen.h>

#include "core/comparison.hpp"
#include "support/catch.hpp"

using namespace rmsnorm;

namespace {

State judged(const at::Tensor& want, const at::Tensor& got, bool one_rounding) {
  Bounds bounds;
  bounds.elementwise = {.atol = 3e-3, .rtol = 3e-3};
  bounds.dtype = Dtype::float16;
  bounds.one_rounding = one_rounding;
  bounds.terms = want.numel();
  Comparison comparison(bounds, want.numel());
  const auto span = [](const at::Tensor& tensor) {
    return std::span<const double>(tensor.const_data_ptr<double>(),
                                   static_cast<std::size_t>(tensor.numel()));
  };
  const at::Tensor magnitude = want.abs(), values = got.to(at::kDouble);
  comparison.add(span(want), span(magnitude), span(values));
  return comparison.finish().state;
}

}  // namespace

TEST_CASE("a result rounded twice passes the plain bounds and breaks that of one rounding",
          "[bounds]") {
  at::manual_seed(5);
  for (const std::int64_t cols : {33, 256, 4096}) {
    CAPTURE(cols);
    const at::Tensor x_hat = at::randn({cols}), gamma = at::randn({cols});
    const at::Tensor want = x_hat.to(at::kDouble) * gamma.to(at::kDouble);
    const at::Tensor once = (x_hat * gamma).to(at::kHalf);
    const at::Tensor twice = (x_hat.to(at::kHalf).to(at::kFloat) * gamma).to(at::kHalf);
    CHECK(judged(want, once, true) == State::passed);
    CHECK(judged(want, twice, true) == State::failed);
    CHECK(judged(want, twice, false) == State::passed);
  }
}
