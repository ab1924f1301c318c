// A plug-in for the tests: plain float32 loops. Compiled four ways by RMSNORM_TEST_PLUGIN_*.
#include <cmath>

#include "rmsnorm/implementation.h"

namespace {

const char* forward_refusal(const rmsnorm_forward_args* args) {
  const bool float32 = args->x.dtype == RMSNORM_FLOAT32 && args->gamma_dtype == RMSNORM_FLOAT32;
  return float32 ? nullptr : "takes float32 alone";
}

const char* backward_refusal(const rmsnorm_backward_args* args) {
  const bool float32 = args->x.dtype == RMSNORM_FLOAT32 && args->gamma_dtype == RMSNORM_FLOAT32;
  return float32 ? nullptr : "takes float32 alone";
}

const float* row(const rmsnorm_rows& rows, int64_t m) {
  return static_cast<const float*>(rows.data) + (m / rows.inner_rows) * rows.outer_stride +
         (m % rows.inner_rows) * rows.inner_stride;
}

int64_t denominator(int64_t cols) {
#ifdef RMSNORM_TEST_PLUGIN_WRONG
  int64_t width = 1;
  while (width < cols) width *= 2;
  return width;
#else
  return cols;
#endif
}

int32_t forward(const rmsnorm_forward_args* args) {
  const float* gamma = static_cast<const float*>(args->gamma);
  for (int64_t m = 0; m < args->rows; ++m) {
    const float* x = row(args->x, m);
    double sum = 0;
    for (int64_t c = 0; c < args->cols; ++c) sum += static_cast<double>(x[c]) * x[c];
    const double rstd =
        1 / std::sqrt(sum / static_cast<double>(denominator(args->cols)) + args->eps);
    float* y = static_cast<float*>(args->y) + m * args->cols;
    for (int64_t c = 0; c < args->cols; ++c) y[c] = static_cast<float>(x[c] * rstd * gamma[c]);
    if (args->rstd != nullptr) static_cast<float*>(args->rstd)[m] = static_cast<float>(rstd);
  }
  return RMSNORM_OK;
}

int32_t backward(const rmsnorm_backward_args* args) {
  const float* gamma = static_cast<const float*>(args->gamma);
  const float* rstd = static_cast<const float*>(args->rstd);
  float* dx = static_cast<float*>(args->dx);
  for (int64_t m = 0; dx != nullptr && m < args->rows; ++m) {
    const float *x = row(args->x, m), *dy = row(args->dy, m);
    double dot = 0;
    for (int64_t c = 0; c < args->cols; ++c) {
      dot += static_cast<double>(dy[c]) * gamma[c] * x[c] * rstd[m];
    }
    const double mean = dot / static_cast<double>(args->cols);
    for (int64_t c = 0; c < args->cols; ++c) {
      const double u = static_cast<double>(dy[c]) * gamma[c];
      dx[m * args->cols + c] =
          static_cast<float>(rstd[m] * (u - static_cast<double>(x[c]) * rstd[m] * mean));
    }
  }
  for (int64_t c = 0; args->dgamma != nullptr && c < args->cols; ++c) {
    double sum = 0;
    for (int64_t m = 0; m < args->rows; ++m) {
      sum += static_cast<double>(row(args->dy, m)[c]) * row(args->x, m)[c] * rstd[m];
    }
    static_cast<float*>(args->dgamma)[c] = static_cast<float>(sum);
  }
  return RMSNORM_OK;
}

#ifdef RMSNORM_TEST_PLUGIN_OTHER_ABI
constexpr uint32_t kAbiVersion = RMSNORM_ABI_VERSION + 1;
#else
constexpr uint32_t kAbiVersion = RMSNORM_ABI_VERSION;
#endif

const rmsnorm_implementation kTable = {
    kAbiVersion,     RMSNORM_CPU,      "loops", "plain loops for a test",
    forward_refusal, backward_refusal, nullptr, nullptr,
    forward,         backward,         nullptr,
};

}  // namespace

#ifndef RMSNORM_TEST_PLUGIN_NO_SYMBOL
extern "C" const rmsnorm_implementation* rmsnorm_plugin(uint32_t, int32_t device_type) {
  return device_type == RMSNORM_CPU ? &kTable : nullptr;
}
#endif
