#include "core/dtype.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

using rmsnorm::Dtype;

TEST_CASE("a dtype is read back from its name and from nothing else") {
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
    CHECK(rmsnorm::parse_dtype(rmsnorm::name(dtype)) == dtype);
  }
  for (const char* text : {"", "float", "Float32", "float32 ", "half", "fp16"}) {
    CAPTURE(text);
    CHECK_FALSE(rmsnorm::parse_dtype(text).has_value());
  }
}

TEST_CASE("the constants of a dtype are those of its format") {
  CHECK(rmsnorm::unit_roundoff(Dtype::float64) == std::numeric_limits<double>::epsilon() / 2);
  CHECK(rmsnorm::unit_roundoff(Dtype::float32) == std::numeric_limits<float>::epsilon() / 2);
  CHECK(rmsnorm::unit_roundoff(Dtype::float16) == std::ldexp(1.0, -11));
  CHECK(rmsnorm::unit_roundoff(Dtype::bfloat16) == std::ldexp(1.0, -8));
  CHECK(rmsnorm::smallest_subnormal(Dtype::float32) == std::numeric_limits<float>::denorm_min());
  CHECK(rmsnorm::smallest_subnormal(Dtype::float16) == std::ldexp(1.0, -24));
  CHECK(rmsnorm::smallest_subnormal(Dtype::bfloat16) == std::ldexp(1.0, -133));
  CHECK(rmsnorm::largest_finite(Dtype::float64) == std::numeric_limits<double>::max());
  CHECK(rmsnorm::largest_finite(Dtype::float32) == std::numeric_limits<float>::max());
  CHECK(rmsnorm::largest_finite(Dtype::float16) == 65504);
  CHECK(rmsnorm::largest_finite(Dtype::bfloat16) == std::ldexp(255.0, 120));
  CHECK(rmsnorm::size_bytes(Dtype::float64) == 8);
  CHECK(rmsnorm::size_bytes(Dtype::float32) == 4);
  CHECK(rmsnorm::size_bytes(Dtype::float16) == 2);
  CHECK(rmsnorm::size_bytes(Dtype::bfloat16) == 2);
}

TEST_CASE("sums are kept in float64 for float64 and in float32 for everything else") {
  CHECK(rmsnorm::accumulation_dtype(Dtype::float64) == Dtype::float64);
  for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
    CHECK(rmsnorm::accumulation_dtype(dtype) == Dtype::float32);
  }
}
