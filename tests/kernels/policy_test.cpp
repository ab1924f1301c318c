#include <limits>

#include "kernels/common/divisor.hpp"
#include "kernels/policy_support.hpp"
#include "support/catch.hpp"

using namespace rmsnorm::kernels::cuda;

TEST_CASE("Rows that are not dense change the backward's plan and not the forward's", "[policy]") {
  for (const std::int64_t cols : kCols) {
    Problem p = problem(16384, cols);
    p.dense = false;
    CAPTURE(cols);
    const ForwardPlan as_dense = plan_forward(problem(16384, cols), Device{});
    CHECK(plan_forward(p, Device{}).path == as_dense.path);
    CHECK(plan_backward(p, Device{}).path != BackwardPath::tiny);
    CHECK(plan_backward(p, Device{}).path != BackwardPath::frame);
  }
}

TEST_CASE("A multiplication and a shift give the quotient", "[policy]") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t divisor :
       {std::int64_t{2}, std::int64_t{3}, std::int64_t{7}, std::int64_t{64}, std::int64_t{65},
        std::int64_t{1000003}, (std::int64_t{1} << 31) - 1, (std::int64_t{1} << 32) + 1,
        (std::int64_t{1} << 62) - 1, std::int64_t{1} << 62}) {
    const rmsnorm::kernels::Divisor by(divisor);
    for (const std::int64_t times :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, most / divisor / 2, most / divisor}) {
      const std::int64_t product = times * divisor;
      for (const std::int64_t value :
           {product - 1, product, product + (product < most ? 1 : 0), most}) {
        if (value < 0) continue;
        CAPTURE(divisor, value);
        CHECK(by.quotient(value) == value / divisor);
      }
    }
  }
}

TEST_CASE("A slice of a device with one processor gets no clusters", "[policy]") {
  Device device;
  device.sms = 1;
  device.max_cluster = 1;
  for (const std::int64_t cols : kCols) {
    for (const int gamma_bytes : {2, 4}) {
      for (const bool one_shift : {false, true}) {
        Problem p = problem(4099, cols, 2);
        p.gamma_bytes = gamma_bytes;
        p.one_shift = one_shift && !p.aligned;
        CAPTURE(cols, gamma_bytes, one_shift);
        CHECK(plan_forward(p, device).cluster == 1);
        CHECK(plan_backward(p, device).cluster == 1);
      }
    }
  }
}

TEST_CASE("What sm_90 brought is not chosen before it", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int capability : {80, 86, 89}) {
      Device device;
      device.compute_capability = capability;
      device.max_cluster = 8;
      CAPTURE(cols, capability);
      CHECK(plan_forward(problem(4096, cols), device).path != ForwardPath::cluster);
      CHECK(plan_forward(problem(4096, cols), device).path != ForwardPath::ring);
      CHECK(plan_forward(problem(4096, cols), device).path != ForwardPath::long_rows);
      CHECK(plan_backward(problem(4096, cols), device).path != BackwardPath::ring);
      CHECK(plan_backward(problem(4096, cols), device).path != BackwardPath::long_rows);
    }
  }
}
