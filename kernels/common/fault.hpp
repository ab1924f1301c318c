#pragma once

namespace rmsnorm::kernels {

// One deliberate mistake, a compile-time parameter of the kernels and of the autograd function: a
// mutant is the product with exactly this changed. The product instantiates `none` alone, for which
// every test of a fault folds away.
//
// X(name, family, pass, check, source, what): `pass` is the pass that the fault is in, `check` the
// one that must find it (others may as well), `source` a public report of such a fault, as
// owner/repository#number, or the warning of the tutorial that this project follows.
#define RMSNORM_TUTORIAL "the tutorial's warning"
#define RMSNORM_FAULTS(X)                                                                         \
  X(denominator_block, denominator, both, forward, RMSNORM_TUTORIAL,                              \
    "means divide by the width of the work block, the next power of two of N")                    \
  X(denominator_n_minus_1, denominator, forward, forward, RMSNORM_TUTORIAL,                       \
    "the mean of squares divides by N - 1")                                                       \
  X(denominator_padded, denominator, forward, forward, RMSNORM_TUTORIAL,                          \
    "the mean of squares counts the padding up to whole vectors of 8")                            \
  X(denominator_rows, denominator, forward, forward, "flagos-ai/FlagGems#5392",                   \
    "the mean of squares divides by the number of rows")                                          \
  X(tail_last_column, tails, forward, forward, "facebookresearch/xformers#785",                   \
    "the last column is not in the sum of squares")                                               \
  X(tail_last_vector, tails, forward, forward, "flashinfer-ai/flashinfer#3879",                   \
    "columns behind the last whole vector of 4 are not in the sum of squares")                    \
  X(column_tile, tails, forward, forward, "facebookresearch/xformers#785",                        \
    "columns from 1024 on are not in the sum of squares")                                         \
  X(overread_next_row, tails, forward, forward, "karpathy/llm.c#794",                             \
    "the sum of squares reads one element past its row")                                          \
  X(tail_not_stored, tails, forward, forward, "ROCm/aiter#5044",                                  \
    "columns of y behind the last whole vector of 4 are not written")                             \
  X(store_past_row, tails, forward, forward, "ROCm/aiter#5044",                                   \
    "the vector at the end of a row of y is stored whole, beyond the row")                        \
  X(last_row_skipped, tails, forward, forward, "karpathy/llm.c#794",                              \
    "the guard of the rows leaves out the last one")                                              \
  X(eps_dropped, eps, forward, forward, "local-inference-lab/b12x#121", "eps is not added")       \
  X(eps_outside_root, eps, forward, forward, "tile-ai/tilelang#1243", "eps is added to the root") \
  X(eps_double_root, eps, forward, forward, "onnx/onnx#6443",                                     \
    "the root of the mean of squares, plus eps, goes under a root again")                         \
  X(eps_doubled, eps, forward, forward, "pytorch/pytorch#155527", "eps is added twice")           \
  X(eps_of_dtype, eps, forward, forward, "pytorch/pytorch#173039",                                \
    "the machine epsilon of x's dtype stands in for eps")                                         \
  X(eps_truncated, eps, forward, forward, "calliope-project/calliope#57",                         \
    "eps passes through an integer")                                                              \
  X(mean_subtracted, statistics, forward, forward, RMSNORM_TUTORIAL,                              \
    "the variance about the row's mean, as in LayerNorm")                                         \
  X(sum_for_mean, statistics, forward, forward, RMSNORM_TUTORIAL,                                 \
    "the sum of squares is not divided")                                                          \
  X(sum_in_16_bits, statistics, forward, forward, RMSNORM_TUTORIAL,                               \
    "the sum of squares is kept in x's dtype")                                                    \
  X(square_rounded, statistics, forward, forward, "skyzh/tiny-llm#18",                            \
    "squares are rounded to x's dtype before they are added")                                     \
  X(square_infinite, statistics, forward, forward, "pytorch/pytorch#134106",                      \
    "a square beyond the range of float16 becomes infinite, and so the sum")                      \
  X(rstd_in_16_bits, statistics, forward, forward, "pytorch/helion#2273",                         \
    "the saved rstd is rounded to x's dtype")                                                     \
  X(normalized_twice, statistics, forward, forward, "huggingface/pytorch-image-models#2741",      \
    "y is multiplied by rstd twice")                                                              \
  X(rounded_twice, statistics, forward, forward, "linkedin/Liger-Kernel#92",                      \
    "x * rstd is rounded to x's dtype before it meets gamma")                                     \
  X(order_by_rows, statistics, forward, forward, "RL-Align/RL-Kernel#145",                        \
    "the order of a row's sum depends on the number of rows")                                     \
  X(gamma_ignored, gamma, forward, forward, "NVIDIA/Megatron-LM#6859",                            \
    "y is not multiplied by gamma")                                                               \
  X(gamma_by_row, gamma, forward, forward, "flagos-ai/FlagGems#5392",                             \
    "gamma is indexed by the row")                                                                \
  X(gamma_read_as_x, gamma, forward, forward, "sgl-project/sglang#32807",                         \
    "float32 gamma is read with x's 16-bit dtype")                                                \
  X(gamma_twice, gamma, forward, forward, "vllm-project/vllm#48741",                              \
    "y is multiplied by gamma twice")                                                             \
  X(nan_element, memory, forward, forward, "tensara/tensara#87", "one element of y is NaN")       \
  X(nan_hidden, memory, forward, forward, "tensara/tensara#87", "a NaN in x is taken for zero")   \
  X(row_offset_narrow, memory, both, forward, "flashinfer-ai/flashinfer#3391",                    \
    "the offset of an output row wraps around")                                                   \
  X(x_scaled_dense, memory, forward, forward, "ModelTC/LightLLM#1467",                            \
    "the sum honours x's row stride, the scaling takes x for dense")                              \
  X(outer_stride_ignored, memory, both, forward, "microsoft/DirectML#588",                        \
    "x in two levels of rows is read with the inner stride alone")                                \
  X(load_aligned_down, memory, forward, forward, "pytorch/pytorch#186235",                        \
    "x is read from the aligned address at or before its row")                                    \
  X(mean_ux_block, denominator, backward, backward, RMSNORM_TUTORIAL,                             \
    "mean(u*x) divides by the width of the work block, after a right forward")                    \
  X(mean_ux_n_minus_1, denominator, backward, backward, RMSNORM_TUTORIAL,                         \
    "mean(u*x) divides by N - 1")                                                                 \
  X(mean_ux_rows, denominator, backward, backward, "flagos-ai/FlagGems#5392",                     \
    "mean(u*x) divides by the number of rows")                                                    \
  X(mean_ux_last_vector, tails, backward, backward, "flashinfer-ai/flashinfer#3879",              \
    "columns behind the last whole vector of 4 are not in mean(u*x)")                             \
  X(rstd_of_other_row, statistics, backward, backward, "pytorch/pytorch#27634",                   \
    "rstd is the one of the row before")                                                          \
  X(no_projection, dx, backward, backward, "karpathy/llm.c#763", "dx is rstd * u alone")          \
  X(rstd_squared, dx, backward, backward, RMSNORM_TUTORIAL, "r^2 for r^3")                        \
  X(projection_added, dx, backward, backward, RMSNORM_TUTORIAL,                                   \
    "the projection is added, not subtracted")                                                    \
  X(gamma_missing_in_mean, dx, backward, backward, "karpathy/llm.c#763",                          \
    "mean(dy*x) for mean(u*x)")                                                                   \
  X(gamma_twice_in_projection, dx, backward, backward, "NVIDIA/Megatron-LM#6859",                 \
    "the projection is multiplied by gamma once more")                                            \
  X(gamma_missing_in_dx, dx, backward, backward, "NVIDIA/Megatron-LM#6859",                       \
    "rstd * dy for rstd * u")                                                                     \
  X(dy_for_x, dx, backward, backward, "ooples/AiDotNet#695",                                      \
    "the projection is along dy, not along x")                                                    \
  X(dx_zero, dx, backward, backward, "keras-team/keras#23565", "dx is zero")                      \
  X(divided_by_gamma, dx, backward, backward, "ServiceNow/Fast-LLM#220",                          \
    "x * rstd is recovered as y / gamma")                                                         \
  X(dy_by_x_stride, memory, backward, backward, "pytorch/pytorch#194719",                         \
    "dy is read with x's strides")                                                                \
  X(dy_overwritten, memory, backward, backward, "linkedin/Liger-Kernel#370",                      \
    "dx is written over dy as well")                                                              \
  X(dx_needs_dgamma, memory, backward, backward, "PaddlePaddle/Paddle#77274",                     \
    "dx is left out where dgamma is not wanted")                                                  \
  X(dgamma_needs_dx, dgamma, backward, gamma, "linkedin/Liger-Kernel#1068",                       \
    "the partials are left out where dx is not wanted")                                           \
  X(dgamma_average, dgamma, backward, gamma, RMSNORM_TUTORIAL,                                    \
    "an average over the rows, not a sum")                                                        \
  X(dgamma_without_rstd, dgamma, backward, gamma, RMSNORM_TUTORIAL,                               \
    "dy*x is summed, not dy*x*rstd")                                                              \
  X(dgamma_rstd_twice, dgamma, backward, gamma, "huggingface/pytorch-image-models#2741",          \
    "dy*x*rstd^2 is summed")                                                                      \
  X(dgamma_last_block_lost, dgamma, backward, gamma, "BobMcDear/attorch#18",                      \
    "rows behind the last whole block of 32 are not summed")                                      \
  X(dgamma_last_row_lost, dgamma, backward, gamma, "BobMcDear/attorch#18",                        \
    "the last row is not summed")                                                                 \
  X(partial_not_written, dgamma, backward, gamma, "pytorch/FBGEMM#5754",                          \
    "the last row of the partials is not written")                                                \
  X(dgamma_row_twice, dgamma, backward, gamma, "karpathy/llm.c#408",                              \
    "the first row is summed twice")                                                              \
  X(dgamma_overwritten, dgamma, backward, gamma, "karpathy/llm.c#408",                            \
    "a row's partial replaces the strip's sum")                                                   \
  X(dgamma_accumulated, dgamma, backward, gamma, "paiml/trueno#178",                              \
    "the sum is added to what dgamma held before")                                                \
  X(dgamma_in_16_bits, dgamma, backward, gamma, "linkedin/Liger-Kernel#950",                      \
    "the sum over rows is kept in gamma's dtype")                                                 \
  X(dgamma_unordered, dgamma, backward, gamma, "ROCm/FlyDSL#795",                                 \
    "the order of the rows changes from call to call")                                            \
  X(dgamma_past_threshold, dgamma, backward, gamma, "intel/torch-xpu-ops#4790",                   \
    "dgamma is not written from 100 rows on")                                                     \
  X(scratch_overrun, dgamma, backward, gamma, "pytorch/pytorch#193016",                           \
    "the partials reach one element past the workspace")                                          \
  X(eps_gradient_for_gamma, autograd, autograd, autograd, "pytorch/pytorch#23020",                \
    "gamma gets the entry of eps, which has no gradient")                                         \
  X(dgamma_when_frozen, autograd, autograd, autograd, "linkedin/Liger-Kernel#1068",               \
    "dgamma is computed although gamma is frozen")                                                \
  X(calls_not_counted, autograd, autograd, autograd, RMSNORM_TUTORIAL,                            \
    "the wrapper does not count its calls")                                                       \
  X(saved_x_alias, autograd, autograd, autograd, "pytorch/pytorch#96852",                         \
    "x is saved as an alias, so that a change in place goes unnoticed")                           \
  X(saved_gamma_alias, autograd, autograd, autograd, "pytorch/pytorch#24413",                     \
    "gamma is saved as an alias, so that a change in place goes unnoticed")                       \
  X(rstd_constant, autograd, autograd, autograd, "pytorch/pytorch#58509",                         \
    "the second derivative takes the saved rstd for a constant")                                  \
  X(no_graph, autograd, autograd, autograd, "huggingface/candle#2168",                            \
    "y is cut off from the graph, so that nothing upstream gets a gradient")

/// `control`, behind the faults, is none of them: right kernels that are compiled with the mutants,
/// under symbols that are not the product's.
enum class Fault {
  none,
#define RMSNORM_FAULT_NAME(name, family, pass, check, source, what) name,
  RMSNORM_FAULTS(RMSNORM_FAULT_NAME)
#undef RMSNORM_FAULT_NAME
      control,
};

}  // namespace rmsnorm::kernels
