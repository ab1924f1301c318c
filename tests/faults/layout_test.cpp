#include <cmath>

#include "faults/support.hpp"

// STRIDE and ALIGN: wherever x, gamma and dy lie, the numbers are those of dense copies.

namespace rmsnorm::test {
namespace {

/// The same values at `offset` elements past an aligned address.
at::Tensor misaligned(const at::Tensor& tensor, std::int64_t offset) {
  at::Tensor buffer = at::full({tensor.numel() + offset}, NAN, tensor.options());
  at::Tensor view = buffer.narrow(0, offset, tensor.numel()).view(tensor.sizes());
  view.copy_(tensor);
  return view;
}

/// Held to the oracle, and equal to the bits that dense tensors give.
void check_as_dense(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy) {
  check_kernels(x, gamma, dy);
  for (const rmsnorm_implementation* table : kernels()) {
    CAPTURE(table->name, text(x.scalar_type()), x.sizes(), x.strides(), dy.strides());
    const Results got = run(*table, x, gamma, dy);
    CHECK(got.y.is_contiguous());
    const Results dense = run(*table, x.contiguous(), gamma.contiguous(), dy.contiguous());
    // Another alignment may sum in another order: equal to rounding, and to the bit where
    // everything is as aligned.
    check_against_oracle(dense, x, gamma, dy);
  }
}

TEST_CASE("B002 the expanded gradients of sum and mean are those of dense ones", "[layout]") {
  for (const auto& [rows, cols] : {std::pair{3, 33}, {2048, 256}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random({2, rows / 2 + 1, cols}, type),
                       gamma = random({cols}, at::kFloat, 2);
      for (const rmsnorm_implementation* table : kernels()) {
        for (const int loss : {0, 1, 2}) {
          const at::Tensor leaf = x.clone().requires_grad_(),
                           weight = gamma.clone().requires_grad_();
          const auto give = type == at::kFloat ? weight : weight;
          const at::Tensor y = rms_norm_with(*table, leaf, give, {cols}, 1e-6, Contract::full);
          const double share = loss == 1 ? 1.0 / static_cast<double>(y.numel()) : 1.0;
          if (loss == 0) y.sum().backward();
          if (loss == 1) y.mean().backward();
          if (loss == 2) y.sum(-1).backward(at::ones({2, rows / 2 + 1}, x.options()));
          const at::Tensor dy = at::full_like(x, share);
          CAPTURE(table->name, loss, rows, text(type));
          check_against_oracle({y.detach(), leaf.grad(), weight.grad()}, x, gamma, dy);
        }
      }
    }
  }
}

TEST_CASE("B003 gradients with strides of their own are read by them", "[layout]") {
  for (const rmsnorm_implementation* table : kernels()) {
    for (const int join : {0, 1, 2}) {  // cat along columns, along rows, stack
      const at::Tensor a = random({7, 24}, at::kFloat).requires_grad_(),
                       b = random({7, 24}, at::kFloat, 2).requires_grad_();
      const at::Tensor gamma = random({24}, at::kFloat, 3);
      const auto norm = [&](const at::Tensor& x) {
        return rms_norm_with(*table, x, gamma, {24}, 1e-6, Contract::full);
      };
      const at::Tensor z = join == 2 ? at::stack({norm(a), norm(b)}, 1)
                                     : at::cat({norm(a), norm(b)}, join == 0 ? 1 : 0);
      const at::Tensor w = random(z.sizes(), at::kFloat, 4);
      (z * w).sum().backward();
      const auto parts = join == 2 ? w.unbind(1) : join == 0 ? w.chunk(2, 1) : w.chunk(2, 0);
      CAPTURE(table->name, join);
      CHECK(used_of_rounding(a.grad(), reference::expected_dx(a.detach(), gamma, parts[0], 1e-6),
                             24) <= 1);
      CHECK(used_of_rounding(b.grad(), reference::expected_dx(b.detach(), gamma, parts[1], 1e-6),
                             24) <= 1);
    }
  }
}

TEST_CASE("B008 any storage offset of x, gamma and dy is read without a misaligned access",
          "[layout]") {
  for (const at::ScalarType type : all_types()) {
    for (const std::int64_t cols : {1024, 40}) {
      const at::Tensor x = random({5, cols}, type), gamma = random({cols}, type, 2),
                       dy = random({5, cols}, type, 3);
      for (const rmsnorm_implementation* table : kernels()) {
        const Results aligned = run(*table, x, gamma, dy);
        for (std::int64_t offset = 1; offset < 8; ++offset) {
          for (const int which : {1, 2, 4, 7}) {
            const Results got = run(*table, which & 1 ? misaligned(x, offset) : x,
                                    which & 2 ? misaligned(gamma, offset) : gamma,
                                    which & 4 ? misaligned(dy, offset) : dy);
            CAPTURE(table->name, text(type), cols, offset, which);
            check_against_oracle(got, x, gamma, dy);
            // On the CPU alignment changes no order of any sum.
            if (!test_device().is_cuda()) CHECK(same_results(got, aligned));
          }
        }
      }
    }
  }
}

TEST_CASE("B015 leading dims of any number are rows, in forward and backward alike", "[layout]") {
  const at::Tensor x = random({24, 16}, at::kFloat), dy = random({24, 16}, at::kFloat, 2),
                   gamma = random({16}, at::kFloat, 3);
  const std::vector<std::vector<std::int64_t>> shapes{
      {24, 16}, {4, 6, 16}, {2, 3, 4, 16}, {2, 2, 3, 2, 16}};
  for (const rmsnorm_implementation* table : kernels()) {
    const Results plain = run(*table, x, gamma, dy);
    for (const auto& shape : shapes) {
      const Results got = run(*table, x.view(shape), gamma, dy.view(shape));
      CHECK(same_bits(got.y.view({24, 16}), plain.y));
      CHECK(same_bits(got.dx.view({24, 16}), plain.dx));
      CHECK(same_bits(got.dgamma, plain.dgamma));
    }
    const Results vector = run(*table, x[3], gamma, dy[3]);
    CHECK(vector.dgamma.sizes() == at::IntArrayRef({16}));
    check_against_oracle(vector, x[3], gamma, dy[3]);
  }
}

TEST_CASE("B026 permuted, sliced and expanded x give what a dense copy gives", "[layout]") {
  for (const at::ScalarType type : all_types()) {
    const at::Tensor gamma = random({4}, type, 2), cube = random({4, 4, 4}, type),
                     dy = random({4, 4, 4}, type, 3);
    check_as_dense(cube.permute({0, 2, 1}), gamma, dy);
    check_as_dense(cube.transpose(0, 2), gamma, dy.permute({2, 1, 0}));
    check_as_dense(cube.slice(1, 0, 4, 2), gamma, dy.slice(1, 1, 4, 2));
    check_as_dense(cube.slice(2, 0, 4, 2).contiguous().narrow(0, 1, 2), gamma.narrow(0, 0, 2),
                   dy.narrow(0, 0, 2).narrow(2, 1, 2));
    check_as_dense(random({1, 33}, type).expand({6, 33}), random({33}, type, 4),
                   random({6, 33}, type, 5));
    check_as_dense(random({6, 66}, type).slice(1, 0, 66, 2),
                   random({66}, type, 4).slice(0, 1, 66, 2),
                   random({6, 66}, type, 5).slice(1, 1, 66, 2));
    check_as_dense(cube.as_strided({3, 2, 4}, {4, 16, 1}), gamma,
                   dy.as_strided({3, 2, 4}, {1, 3, 1}));
  }
}

TEST_CASE("B101 a transposed x is read by the same strides in every pass", "[layout]") {
  for (const at::ScalarType type : all_types()) {
    for (const auto& [rows, cols] : {std::pair{5, 33}, {64, 256}}) {
      check_as_dense(random({cols, rows}, type).t(), random({cols}, type, 2),
                     random({cols, rows}, type, 3).t());
    }
  }
}

TEST_CASE("B122 rows whose length is no multiple of a vector are stored without a misaligned one",
          "[layout]") {
  for (const std::int64_t cols : {46, 50, 54, 92, 1030}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
      for (const Layout layout : {Layout::contiguous, Layout::offset, Layout::row_strided}) {
        for (const Operation operation : kOperations) {
          check_passes(operation, {9, cols, dtype, layout});
        }
      }
    }
  }
}

TEST_CASE("B052 gamma of another length than the rows is refused with both sizes", "[layout]") {
  const at::Tensor x = random({4, 64}, at::kFloat);
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{63}, {65}, {1}, {}, {1, 64}}) {
    const at::Tensor gamma = at::ones(shape, options(at::kFloat));
    CAPTURE(shape);
    for (const Contract contract : {Contract::minimum, Contract::full}) {
      CHECK_THROWS_AS(functional::rms_norm(x, gamma, 1e-6, contract), ContractError);
      CHECK_THROWS_WITH(functional::rms_norm(x, gamma, 1e-6, contract), contains_text("64"));
    }
  }
  check_kernels(x, random({64}, at::kFloat, 2), x);
}

}  // namespace
}  // namespace rmsnorm::test
