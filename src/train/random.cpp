#include "train/random.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include <stdexcept>

#include "core/cases.hpp"

namespace rmsnorm {

at::Generator seeded_generator(std::uint64_t seed, std::string_view purpose) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(case_seed(seed, purpose));
  return generator;
}

BatchOrder::BatchOrder(std::int64_t examples, std::int64_t batch, std::uint64_t seed)
    : examples_(examples), batch_(batch), generator_(seeded_generator(seed, "order")) {
  start_epoch();
}

void BatchOrder::start_epoch() {
  epoch_generator_ = generator_.get_state();
  permutation_ = at::randperm(examples_, generator_, at::kLong);
  position_ = 0;
}

at::Tensor BatchOrder::next() {
  if (position_ + batch_ > examples_) start_epoch();
  const at::Tensor indices = permutation_.narrow(0, position_, batch_);
  position_ += batch_;
  return indices;
}

BatchOrder::State BatchOrder::state() const {
  return {epoch_generator_.clone(), position_};
}

void BatchOrder::restore(const State& state) {
  if (state.position < 0 || state.position > examples_ || state.position % batch_ != 0) {
    throw std::invalid_argument(
        fmt::format("order.position: must be a multiple of the batch {} up to {} examples; got {}",
                    batch_, examples_, state.position));
  }
  if (state.generator.scalar_type() != at::kByte ||
      state.generator.sizes() != epoch_generator_.sizes()) {
    throw std::invalid_argument(fmt::format("order.generator: must be {} bytes; got {} {}",
                                            epoch_generator_.numel(), state.generator.numel(),
                                            at::toString(state.generator.scalar_type())));
  }
  generator_.set_state(state.generator.contiguous());
  start_epoch();
  position_ = state.position;
}

}  // namespace rmsnorm
