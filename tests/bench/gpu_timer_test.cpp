#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "bench/timer.hpp"
#include "kernels/bench.h"
#include "operator/streams.hpp"
#include "support/catch.hpp"

using namespace rmsnorm;
using namespace rmsnorm::bench;

namespace {

const at::Device device(at::kCUDA, 0);

Work spin_of(std::int64_t microseconds) {
  return [microseconds] {
    if (rmsnorm_bench_spin(1000 * microseconds, current_stream(device)) != 0) {
      throw std::runtime_error("the waiting kernel did not start");
    }
  };
}

at::Tensor bytes(std::int64_t count) {
  return at::randint(0, 256, {count}, at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

TEST_CASE("each clock measures a kernel that lasts a known time", "[timer]") {
  const auto timer = make_timer(device);
  timer->elapsed_us(spin_of(1));  // its kernel is loaded at the first call
  for (const std::int64_t us : {200, 400, 800}) {
    CAPTURE(us);
    const double expected = static_cast<double>(us);
    CHECK(timer->elapsed_us(spin_of(us)) == Approx(expected).margin(40));
    CHECK(timer->cold_us(spin_of(us), Flush::read) == Approx(expected).margin(20));
    CHECK(timer->cold_us(spin_of(us), Flush::write) == Approx(expected).margin(20));
    const auto replay = timer->capture(spin_of(us), 1, 5);
    CHECK(replay->elapsed_us() / 5 == Approx(expected).margin(20));
  }
}

TEST_CASE("a host that is slow to enqueue is not in a cold time", "[timer]") {
  const auto timer = make_timer(device);
  const auto slow = [] {
    spin_of(100)();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    spin_of(100)();
  };
  CHECK(timer->cold_us(slow, Flush::read) == Approx(200).margin(20));
  CHECK(timer->elapsed_us(slow) > 2000);
}

TEST_CASE("a call that waits for the device has no cold time", "[timer]") {
  const auto timer = make_timer(device);
  const auto waiting = [&] {
    spin_of(10)();
    timer->synchronize();
  };
  CHECK_THROWS_AS(timer->cold_us(waiting, Flush::read), std::runtime_error);
}

TEST_CASE("a failed capture leaves a usable stream", "[timer]") {
  const auto timer = make_timer(device);
  int runs = 0;
  const auto failing = [&] {
    if (++runs > 1) throw std::runtime_error("no more");
    spin_of(10)();
  };
  CHECK_THROWS_AS(timer->capture(failing, 1, 2), std::runtime_error);
  CHECK(timer->elapsed_us(spin_of(200)) == Approx(200).margin(40));
  CHECK(timer->capture(spin_of(200), 1, 1)->elapsed_us() == Approx(200).margin(20));
}

TEST_CASE("the copies move every byte and nothing else", "[timer]") {
  for (const std::int64_t count :
       {std::int64_t{1}, std::int64_t{15}, std::int64_t{16}, std::int64_t{17}, std::int64_t{4096},
        std::int64_t{65 * 4096 + 7}, (std::int64_t{1} << 26) + 3}) {
    CAPTURE(count);
    const at::Tensor a = bytes(count), b = bytes(count);
    at::Tensor out = at::full({count + 16}, 7, a.options());
    void* const stream = current_stream(device);
    REQUIRE(rmsnorm_bench_copy(out.mutable_data_ptr(), a.const_data_ptr(), count, stream) == 0);
    CHECK(at::equal(out.narrow(0, 0, count), a));
    CHECK(out.narrow(0, count, 16).eq(7).all().item<bool>());
    REQUIRE(rmsnorm_bench_combine(out.mutable_data_ptr(), a.const_data_ptr(), b.const_data_ptr(),
                                  count, stream) == 0);
    CHECK(at::equal(out.narrow(0, 0, count), at::bitwise_xor(a, b)));
    CHECK(out.narrow(0, count, 16).eq(7).all().item<bool>());
  }
}

TEST_CASE("a copy of less than the cache is slower on a flushed cache than on a hot one",
          "[timer]") {
  const auto timer = make_timer(device);
  const std::int64_t count = timer->cache_bytes() / 8;
  const at::Tensor from = bytes(count), to = bytes(count);
  const auto copy = [&] {
    REQUIRE(rmsnorm_bench_copy(to.mutable_data_ptr(), from.const_data_ptr(), count,
                               current_stream(device)) == 0);
  };
  const auto replay = timer->capture(copy, 3, 20);
  replay->elapsed_us();
  timer->cold_us(copy, Flush::read);
  CHECK(timer->cold_us(copy, Flush::read) > 1.2 * replay->elapsed_us() / 20);
}

TEST_CASE("what a call asked the cache to keep is not there after a flush", "[timer]") {
  const auto timer = make_timer(device);
  const std::int64_t count = timer->cache_bytes() / 8 / 16 * 16;  // an H200 keeps some 12 MiB
  const at::Tensor sink = bytes(16);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(bytes(count).zero_());
  // Of one tensor in turn every read but the first is of what was just read.
  const auto median_us = [&](std::size_t tensors_in_turn, Flush flush) {
    std::vector<double> us;
    for (std::size_t i = 0; i < 48; ++i) {
      const void* const data = tensors[i % tensors_in_turn].const_data_ptr();
      us.push_back(timer->cold_us(
          [&] {
            REQUIRE(rmsnorm_bench_read_to_keep(data, count, sink.mutable_data_ptr(),
                                               current_stream(device)) == 0);
          },
          flush));
    }
    std::nth_element(us.begin(), us.begin() + 24, us.end());
    return us[24];
  };
  for (const Flush flush : {Flush::read, Flush::write}) {
    CAPTURE(flush == Flush::write);
    median_us(1, flush);
    CHECK(median_us(1, flush) > 0.95 * median_us(tensors.size(), flush));
  }
}
