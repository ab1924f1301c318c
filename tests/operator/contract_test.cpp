#include "core/contract.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "rmsnorm/counters.hpp"
#include "rmsnorm/functional.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// The message of the refusal; empty when the call was taken. A refused call must count nothing.
template <class Call>
std::string refusal(Call call) {
  const CallCounts before = call_counts();
  try {
    static_cast<void>(call());
    return {};
  } catch (const ContractError& error) {
    const CallCounts after = call_counts();
    CHECK(after.forward == before.forward);
    CHECK(after.backward == before.backward);
    CHECK(after.copies == before.copies);
    return error.what();
  }
}

/// Refused with a sentence `rms_norm: ...; got ...` that contains the parts.
void check_refused(const at::Tensor& x, const at::Tensor& gamma, double eps, Contract contract,
                   const std::vector<std::string>& parts) {
  const std::string message =
      refusal([&] { return functional::rms_norm(x, gamma, eps, contract); });
  CAPTURE(message, parts);
  CHECK(message.starts_with("rms_norm: "));
  CHECK(message.find("; got ") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  for (const std::string& part : parts) CHECK(message.find(part) != std::string::npos);
}

bool taken(const at::Tensor& x, const at::Tensor& gamma, double eps, Contract contract) {
  const std::string message =
      refusal([&] { return functional::rms_norm(x, gamma, eps, contract); });
  if (!message.empty()) UNSCOPED_INFO(message);
  return message.empty();
}

at::Tensor ones(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::ones(sizes, options(type));
}

TEST_CASE("minimum takes x of two dims alone", "[contract]") {
  const at::Tensor gamma = ones({8});
  check_refused(ones({8}), gamma, 1e-6, Contract::minimum, {"x must have 2 dims", "[8]"});
  check_refused(ones({2, 3, 8}), gamma, 1e-6, Contract::minimum,
                {"x must have 2 dims", "[2, 3, 8]"});
  check_refused(ones({}), gamma, 1e-6, Contract::minimum, {"x must have at least 1 dim", "[]"});
  CHECK(taken(ones({2, 8}), gamma, 1e-6, Contract::minimum));
}

TEST_CASE("minimum takes contiguous x and gamma alone, and copies neither", "[contract]") {
  const at::Tensor gamma = ones({8});
  check_refused(ones({8, 2}).t(), gamma, 1e-6, Contract::minimum,
                {"x must be contiguous", "[2, 8]", "strides [1, 2]", ".contiguous()"});
  check_refused(ones({2, 9}).narrow(1, 0, 8), gamma, 1e-6, Contract::minimum,
                {"x must be contiguous", "strides [9, 1]"});
  check_refused(ones({1, 8}).expand({3, 8}), gamma, 1e-6, Contract::minimum,
                {"x must be contiguous", "strides [0, 1]"});
  check_refused(ones({2, 8}), ones({16}).slice(0, 0, 16, 2), 1e-6, Contract::minimum,
                {"gamma must be contiguous", "strides [2]"});
  check_refused(ones({2, 8}), ones({1}).expand({8}), 1e-6, Contract::minimum,
                {"gamma must be contiguous", "strides [0]"});
  CHECK(taken(ones({3, 8}).narrow(0, 1, 2), ones({9}).narrow(0, 1, 8), 1e-6, Contract::minimum));
}

TEST_CASE("minimum takes float32 or float16 throughout", "[contract]") {
  std::vector<at::ScalarType> types = all_types();
  types.insert(types.end(), {at::kInt, at::kLong, at::kBool, at::kComplexFloat});
  for (const at::ScalarType x : types) {
    for (const at::ScalarType gamma : types) {
      CAPTURE(text(x), text(gamma));
      const bool allowed = x == gamma && (x == at::kFloat || x == at::kHalf);
      if (allowed) {
        CHECK(taken(ones({2, 8}, x), ones({8}, gamma), 1e-6, Contract::minimum));
      } else {
        check_refused(ones({2, 8}, x), ones({8}, gamma), 1e-6, Contract::minimum, {" must "});
      }
    }
  }
  check_refused(ones({2, 8}, at::kBFloat16), ones({8}, at::kBFloat16), 1e-6, Contract::minimum,
                {"x must be float32 or float16", "bfloat16"});
  check_refused(ones({2, 8}, at::kHalf), ones({8}), 1e-6, Contract::minimum,
                {"gamma must have x's dtype float16", "got float32"});
}

TEST_CASE("full takes four dtypes, and float32 gamma beside 16 bits", "[contract]") {
  std::vector<at::ScalarType> types = all_types();
  types.insert(types.end(), {at::kInt, at::kComplexDouble});
  for (const at::ScalarType x : types) {
    for (const at::ScalarType gamma : types) {
      CAPTURE(text(x), text(gamma));
      const bool known = to_rmsnorm_dtype(x) >= 0;
      const bool half = x == at::kHalf || x == at::kBFloat16;
      if (known && (x == gamma || (half && gamma == at::kFloat))) {
        CHECK(taken(ones({2, 8}, x), ones({8}, gamma), 1e-6, Contract::full));
      } else {
        check_refused(ones({2, 8}, x), ones({8}, gamma), 1e-6, Contract::full, {" must "});
      }
    }
  }
}

TEST_CASE("eps is finite and above zero", "[contract]") {
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    for (const double eps : {0.0, -0.0, -1.0, -1e-6, kNan, kInf, -kInf}) {
      CAPTURE(eps);
      check_refused(ones({2, 8}), ones({8}), eps, contract, {"eps must be finite and > 0"});
    }
    CHECK(taken(ones({2, 8}), ones({8}), 1e-30, contract));
    CHECK(taken(ones({2, 8}), ones({8}), 1e30, contract));
  }
}

TEST_CASE("minimum takes 1 to 4096 columns", "[contract]") {
  check_refused(ones({2, 0}), ones({0}), 1e-6, Contract::minimum, {"1 to 4096 columns", "[2, 0]"});
  check_refused(ones({2, 4097}), ones({4097}), 1e-6, Contract::minimum,
                {"1 to 4096 columns", "[2, 4097]"});
  CHECK(taken(ones({2, 1}), ones({1}), 1e-6, Contract::minimum));
  CHECK(taken(ones({2, 4096}), ones({4096}), 1e-6, Contract::minimum));
  CHECK(taken(ones({2, 4097}), ones({4097}), 1e-6, Contract::full));
  check_refused(ones({2, 0}), ones({0}), 1e-6, Contract::full, {"at least 1 element"});
}

TEST_CASE("minimum takes 64 MiB of scratch to the byte", "[contract]") {
  // Uninitialised: only the shape matters, and the pages stay untouched until the call.
  const at::Tensor gamma = ones({4096}, at::kHalf);
  CHECK(taken(at::zeros({4096, 4096}, options(at::kHalf)), gamma, 1e-6, Contract::minimum));
  check_refused(at::empty({4097, 4096}, options(at::kHalf)), gamma, 1e-6, Contract::minimum,
                {"64 MiB", "[4097, 4096]"});
  check_refused(at::empty({(1 << 24) + 1, 1}, options(at::kHalf)), ones({1}, at::kHalf), 1e-6,
                Contract::minimum, {"64 MiB", "[16777217, 1]"});
}

TEST_CASE("gamma has exactly the normalized shape", "[contract]") {
  const at::Tensor x = ones({2, 8});
  const std::vector<at::Tensor> wrong{ones({7}),    ones({9}),    ones({1}),
                                      ones({1, 8}), ones({8, 1}), ones({})};
  const std::vector<std::string> shapes{"[7]", "[9]", "[1]", "[1, 8]", "[8, 1]", "[]"};
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      check_refused(x, wrong[i], 1e-6, contract,
                    {"rms_norm: gamma must have shape [8]; got " + shapes[i]});
    }
  }
}

TEST_CASE("Undefined, sparse and quantized tensors are refused by name", "[contract]") {
  const at::Tensor x = ones({2, 8}), gamma = ones({8});
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    check_refused({}, gamma, 1e-6, contract, {"x must be a tensor", "undefined"});
    check_refused(x, {}, 1e-6, contract, {"gamma must be a tensor", "undefined"});
    check_refused(x.to_sparse(), gamma, 1e-6, contract, {"x must be a dense tensor"});
    check_refused(x, gamma.to_sparse(), 1e-6, contract, {"gamma must be a dense tensor"});
    if (test_device().is_cpu()) {
      check_refused(at::quantize_per_tensor(x, 0.1, 0, at::kQInt8), gamma, 1e-6, contract,
                    {"x must be a dense tensor"});
      const at::Tensor nested = at::_nested_tensor_from_tensor_list({ones({2, 8}), ones({3, 7})});
      check_refused(nested, gamma, 1e-6, contract, {"x must be a dense tensor"});
    }
  }
}

TEST_CASE("Tensors of another kind of device are refused", "[contract]") {
  const at::Tensor x = ones({2, 8}), gamma = ones({8});
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    check_refused(x.to(at::kMeta), gamma, 1e-6, contract, {"x must be on a CPU or CUDA device"});
    check_refused(x, gamma.to(at::kMeta), 1e-6, contract,
                  {"gamma must be on a CPU or CUDA device"});
  }
}

TEST_CASE("The normalized shape must be the end of x's", "[contract]") {
  const at::Tensor x = ones({2, 3, 4});
  const auto message = [&](at::IntArrayRef shape) {
    return refusal([&] { return functional::rms_norm(x, shape); });
  };
  CHECK(message({}).find("normalized_shape must have at least 1 dim") != std::string::npos);
  CHECK(message({3}).find("[3]; got x of shape [2, 3, 4]") != std::string::npos);
  CHECK(message({4, 3}).find("x must end in the normalized shape") != std::string::npos);
  CHECK(message({1, 2, 3, 4}).find("x must end in") != std::string::npos);
  CHECK(message({-1}).find("x must end in") != std::string::npos);
  CHECK(message({4}).empty());
  CHECK(message({2, 3, 4}).empty());
}

TEST_CASE("A refusal leaves tensors and graph as they were", "[contract]") {
  const at::Tensor leaf = random({2, 8}, at::kFloat).requires_grad_();
  const at::Tensor x = leaf * 2;
  const at::Tensor gamma = random({9}, at::kFloat).requires_grad_();
  const at::Tensor x_copy = x.detach().clone(), gamma_copy = gamma.detach().clone();
  const auto node = x.grad_fn();
  const auto version = x._version();
  check_refused(x, gamma, 1e-6, Contract::minimum, {"gamma must have shape"});
  CHECK(same_bits(x, x_copy));
  CHECK(same_bits(gamma, gamma_copy));
  CHECK(x.grad_fn() == node);
  CHECK(x._version() == version);
  CHECK_FALSE(leaf.grad().defined());
  x.sum().backward();
  CHECK(same_bits(leaf.grad(), at::full_like(leaf, 2)));
}

TEST_CASE("dy must fit x", "[contract]") {
  const at::Tensor x = ones({2, 8});
  const auto message = [&](const at::Tensor& dy, Contract contract) {
    return refusal([&] {
      require_backward(contract, "rms_norm backward", describe(x), describe(dy));
      return 0;
    });
  };
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    CHECK(message({}, contract).find("dy must be a tensor") != std::string::npos);
    CHECK(message(ones({2, 7}), contract).find("dy must have x's shape [2, 8]; got [2, 7]") !=
          std::string::npos);
    CHECK(message(ones({8}), contract).find("dy must have x's shape") != std::string::npos);
    CHECK(message(ones({2, 8}, at::kHalf), contract).find("dtype float32; got float16") !=
          std::string::npos);
    CHECK_FALSE(message(ones({2, 8}).to(at::kMeta), contract).empty());
    CHECK(message(ones({2, 8}), contract).empty());
  }
  CHECK_FALSE(message(ones({8, 2}).t(), Contract::minimum).empty());
  CHECK(message(ones({8, 2}).t(), Contract::full).empty());
}

}  // namespace
}  // namespace rmsnorm::test
