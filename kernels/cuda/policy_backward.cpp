#include <limits>

#include "kernels/cuda/policy_rows.hpp"

namespace rmsnorm::kernels::cuda {
namespace {

constexpr std::int64_t kLaneElements =
    8;  // elements that a lane holds of a row that is not aligned
constexpr std::int64_t kFrameMaxCols = 1152;
constexpr std::int64_t kSplitMaxRows = 384;  // measured crossover at 4096 columns
constexpr std::int64_t kSplitMaxBytes = std::int64_t{4} << 20;
// A block computes dx of a row: longer ones are shared out over a cluster.
constexpr std::int64_t kSplitMaxAccesses = 3072, kSplitMaxElements = 6144;
constexpr std::int64_t kWindowSlack =
    256;  // a window may start and end up to 128 bytes outside its row
constexpr std::size_t kThreadRingStatics = 8192;  // beside the rings: rstd or sums of warps
constexpr std::int64_t kMaxPartialBytes = std::int64_t{8} << 20;
constexpr std::int64_t kLeastDotBytes = 64 * 1024;  // beside them, for dots of long rows
// Of long rows: each chunk begins anew with gamma and its sums.
constexpr std::int64_t kMostRowChunks = 6;

/// Partial rows of dgamma that the scratch has room for; none where a single one is larger.
std::int64_t affordable_partials(const Problem& p) {
  return kMaxPartialBytes / (partial_pitch(p.cols) * (p.float64 ? 8 : 4));
}

bool is_few(const Problem& p) {
  if (p.rows == 0) return true;
  const bool short_rows =
      p.aligned ? row_vectors(p) <= kSplitMaxAccesses : p.cols <= kSplitMaxElements;
  return short_rows && p.rows <= kSplitMaxRows && p.rows * row_bytes(p) <= kSplitMaxBytes;
}

BackwardPlan split_plan(const Problem& p, const Device& device) {
  BackwardPlan plan;
  plan.path = BackwardPath::split;
  plan.group_threads = 256;
  const std::int64_t width = p.aligned && !p.float64 ? kPackBytes / p.element_bytes : 1;
  const std::int64_t accesses = ceil_div(p.cols, width);
  if (p.wants_dx)
    plan.row_blocks = static_cast<int>(std::min<std::int64_t>(p.rows, 16 * device.sms));
  // Few columns per block while that makes enough blocks; wide ones when there are many columns
  // anyway, or too few rows to share out.
  const std::int64_t least = p.rows > 192 || width == 1 ? 4 : p.rows > 16 ? 8 : 32;
  plan.column_threads = 32;
  while (plan.column_threads > least && ceil_div(accesses, plan.column_threads) < device.sms)
    plan.column_threads /= 2;
  const std::int64_t column_blocks = ceil_div(accesses, plan.column_threads);
  const std::int64_t slots = plan.group_threads / plan.column_threads;
  const std::int64_t wanted = std::max<std::int64_t>(1, 8 * device.sms / column_blocks);
  const std::int64_t useful = std::max<std::int64_t>(1, ceil_div(p.rows, 32 * slots));
  const std::int64_t allowed = std::max<std::int64_t>(1, affordable_partials(p));
  const std::int64_t chunks = std::min({wanted, useful, allowed});
  plan.blocks = plan.row_blocks + static_cast<int>(p.wants_dgamma ? column_blocks * chunks : 0);
  plan.partial_rows = p.wants_dgamma && chunks > 1 ? static_cast<int>(chunks) : 0;
  return plan;
}

/// The lanes of a row and what each holds, the fewest places empty.
void shape_lanes(const Problem& p, const Device& device, BackwardPlan& plan) {
  const std::int64_t vectors = row_vectors(p);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const int per_lane : {1, 2, 3}) {
    const std::int64_t lanes = power_of_two_at_least(ceil_div(vectors, per_lane));
    if (lanes > kWarp || lanes * per_lane >= least) continue;
    // Fewer than eight lanes read too little side by side.
    if (per_lane > 1 && lanes < 8) continue;
    const int stages = lanes_ring_stages(per_lane);
    if (thread_ring_bytes(per_lane, stages) + kThreadRingStatics > device.shared_bytes) continue;
    least = lanes * per_lane;
    plan.lanes = static_cast<int>(lanes);
    plan.vectors = per_lane;
  }
}

/// Rows of whole vectors go through rings, a block per SM; single elements are held in registers.
/// Without lanes where the rows are too long.
BackwardPlan lanes_plan(const Problem& p, const Device& device) {
  BackwardPlan plan;
  plan.path = BackwardPath::lanes;
  if (p.aligned) {
    shape_lanes(p, device, plan);
    if (plan.lanes == 0) return plan;
    plan.group_threads = kThreadRingBlock;
  } else {
    plan.lanes = static_cast<int>(std::min(kWarp, power_of_two_at_least(p.cols)));
    plan.vectors = static_cast<int>(power_of_two_at_least(ceil_div(p.cols, plan.lanes)));
    plan.group_threads = 256;
  }
  // A block is a partial row more.
  plan.blocks =
      even_blocks(p.rows, plan.group_threads / plan.lanes, p.aligned ? device.sms : 2 * device.sms);
  plan.partial_rows = p.wants_dgamma ? plan.blocks : 0;
  return plan;
}

BackwardPlan tiny_plan(const Problem& p, const Device& device) {
  BackwardPlan plan;
  plan.path = BackwardPath::tiny;
  const std::int64_t width = kPackBytes / p.element_bytes, common = std::gcd(width, p.cols);
  plan.vectors = static_cast<int>(p.cols / common);
  plan.tile_rows = static_cast<int>(kWarp * width / common);
  const TinyShape shape = tiny_shape(plan.vectors);
  plan.group_threads = shape.threads;
  plan.stages = shape.stages;
  const std::int64_t block_rows = shape.threads / kWarp * plan.tile_rows;
  plan.blocks = even_blocks(p.rows, block_rows, std::int64_t{shape.blocks} * device.sms);
  plan.partial_rows = p.wants_dgamma ? plan.blocks : 0;
  return plan;
}

/// As many threads in a block as leave an SM with the most vectors at work, of those whose tile is
/// whole periods.
BackwardPlan frame_plan(const Problem& p, const Device& device) {
  const std::int64_t width = kPackBytes / p.element_bytes;
  const std::int64_t period_rows = shift_period(p);
  const std::int64_t period_vectors = period_rows * p.cols / width;
  // Two blocks for every SM where there are few rows.
  const std::int64_t most_periods = ceil_div(p.rows, 2 * device.sms * period_rows);
  BackwardPlan best;
  std::int64_t most_at_work = 0, resident = 1;
  BackwardPlan plan;
  plan.path = BackwardPath::frame;
  plan.vectors = 1;
  while (plan.vectors < kFrameMaxVectors &&
         period_vectors > plan.vectors * frame_shape(plan.vectors).threads)
    ++plan.vectors;
  const FrameShape shape = frame_shape(plan.vectors);
  plan.stages = shape.stages;
  constexpr std::int64_t kLeastThreads = 128;
  for (std::int64_t threads = shape.threads; threads >= kLeastThreads; threads -= kWarp) {
    const std::int64_t periods = std::min(most_periods, plan.vectors * threads / period_vectors);
    if (periods == 0) break;
    const std::int64_t vectors = periods * period_vectors;
    plan.tile_rows = static_cast<int>(periods * period_rows);
    plan.group_threads = static_cast<int>(round_up(ceil_div(vectors, plan.vectors), kWarp));
    const std::int64_t fit = frame_resident(shape, plan.group_threads, frame_shared_bytes(p, plan));
    const std::int64_t at_work = vectors * fit;
    if (at_work <= most_at_work) continue;
    most_at_work = at_work;
    resident = fit;
    best = plan;
  }
  best.lanes = static_cast<int>(
      std::min(kWarp, power_of_two_at_least(ceil_div(row_pieces(p), kFrameLaneSlots))));
  while (best.lanes * best.tile_rows > best.group_threads) best.lanes /= 2;
  best.blocks =
      even_blocks(p.rows, best.tile_rows, std::min(resident * device.sms, affordable_partials(p)));
  best.partial_rows = p.wants_dgamma ? best.blocks : 0;
  return best;
}

/// Rows whose threads have a ring of their own: all that a block of two vectors per thread can
/// hold.
bool groups_take(const Problem& p) {
  return p.aligned && row_vectors(p) <= 2 * kMaxBlockThreads;
}

/// As many vectors of rows at work in a block as can be; two per thread unless three hold a quarter
/// more, because three leave no register.
void shape_groups(const Problem& p, BackwardPlan& plan) {
  const std::int64_t vectors = row_vectors(p);
  std::int64_t held = 0;
  for (const int per_thread : {2, 3}) {
    const std::int64_t threads =
        std::max(2 * kWarp, round_up(ceil_div(vectors, per_thread), kWarp));
    const std::int64_t groups = kMaxBlockThreads / threads;
    if (groups * vectors * 4 < held * 5) continue;
    held = groups * vectors;
    plan.vectors = per_thread;
    plan.group_threads = static_cast<int>(threads);
    plan.groups = static_cast<int>(groups);
  }
}

BackwardPlan groups_plan(const Problem& p, const Device& device) {
  BackwardPlan plan;
  plan.path = BackwardPath::groups;
  shape_groups(p, plan);
  plan.blocks =
      even_blocks(p.rows, plan.groups, std::min<std::int64_t>(device.sms, affordable_partials(p)));
  plan.partial_rows = p.wants_dgamma ? plan.blocks : 0;
  return plan;
}

/// Vectors of a frame that one block holds, four per thread: with more they would spill.
constexpr std::int64_t kShiftedVectors = 4 * kShiftedThreads;

/// Blocks that share a row that starts anywhere. In a cluster five vectors per thread do not spill,
/// but beside a float32 gamma; slices of so many leave room for three stages.
std::int64_t shifted_cluster(const Problem& p) {
  const std::int64_t vectors = frame_vectors(p);
  if (vectors <= kShiftedVectors) return 1;
  const std::int64_t slice = p.gamma_bytes > p.element_bytes ? kShiftedVectors : 2100;
  return std::max<std::int64_t>(2, power_of_two_at_least(ceil_div(vectors, slice)));
}

/// As many rows at work as sixteen warps can hold, then as few vectors per thread.
void shape_shifted(const Problem& p, BackwardPlan& plan) {
  const std::int64_t vectors = frame_vectors(p);
  plan.groups = 0;
  for (const int per_thread : {2, 3, 4}) {
    const std::int64_t threads = round_up(ceil_div(vectors, per_thread), kWarp);
    const std::int64_t groups = kShiftedThreads / threads;
    if (groups <= plan.groups) continue;
    plan.vectors = per_thread;
    plan.group_threads = static_cast<int>(threads);
    plan.groups = static_cast<int>(groups);
  }
  plan.pace = 1.0f;
}

/// As few blocks as hold a row's frame: the larger a cluster, the fewer fit the chip.
void shape_shifted_cluster(const Problem& p, BackwardPlan& plan) {
  plan.cluster = static_cast<int>(shifted_cluster(p));
  plan.vectors = static_cast<int>(
      std::max<std::int64_t>(3, ceil_div(slice_vectors(p, plan.cluster), kShiftedThreads)));
  plan.group_threads = kShiftedThreads;
  plan.pace = plan.vectors == 3 ? 1.0f : 0.25f;
}

/// A group must meet one shift only: blocks * groups rows further it must be the same again.
/// Clusters take rows in another order.
std::int64_t blocks_multiple(const Problem& p, const BackwardPlan& plan) {
  if (plan.cluster > 1) return 1;
  const std::int64_t period = shift_period(p);
  return period / std::gcd(period, std::int64_t{plan.groups});
}

/// Shared memory beside the ring through which a shifted cluster's sums of dgamma go to their
/// columns while the ring is in use: one vector per thread.
std::int64_t fold_bytes(const Problem& p, const BackwardPlan& plan) {
  if (p.aligned || plan.cluster == 1) return 0;
  return plan.group_threads * kPackBytes / p.element_bytes * 4;
}

BackwardPlan ring_plan(const Problem& p, const Device& device) {
  BackwardPlan plan;
  plan.path = BackwardPath::ring;
  const std::int64_t vectors = row_vectors(p);
  std::int64_t most_stages = 3;
  if (!p.aligned && shifted_cluster(p) > 1) {
    shape_shifted_cluster(p, plan);
    most_stages = plan.vectors == 3 ? 4 : 3;
  } else if (!p.aligned) {
    shape_shifted(p, plan);
    most_stages = plan.groups > 1 ? 2 : 4;
  } else {
    // Four vectors per thread read x and dy twice from shared memory. Longer rows go to clusters,
    // and so do these beside a float32 gamma that would take the registers, two vectors per thread.
    plan.vectors = 4;
    plan.group_threads = kMaxBlockThreads;
    plan.pace = 0.25f;
    if (vectors > 2048) {
      plan.cluster = static_cast<int>(power_of_two_at_least(ceil_div(vectors, 2048)));
    } else if ((p.gamma_bytes > p.element_bytes || vectors > 1920) && device.max_cluster > 1) {
      plan.vectors = 2;
      plan.cluster = 2;
      most_stages = 5;
      plan.pace = 0.5f;
    }
  }
  most_stages = std::min(most_stages, kMaxRingSlots / plan.groups);
  const std::int64_t ring_bytes = std::min<std::int64_t>(kSharedBytesPerSm, device.shared_bytes) -
                                  kRingFixedBytes - fold_bytes(p, plan);
  // A cluster holds the rows whose dots run ahead of their dx: two, or one of four vectors.
  const std::int64_t least_stages = plan.cluster > 1 && plan.vectors == 2 ? 3 : 2;
  plan.stages = static_cast<int>(std::clamp<std::int64_t>(
      ring_bytes / (2 * plan.groups * ring_part_bytes(p, plan)), least_stages, most_stages));
  const std::int64_t resident = resident_clusters(plan.cluster, device);
  const std::int64_t multiple = blocks_multiple(p, plan);
  const std::int64_t most =
      std::max(multiple, std::min(resident, affordable_partials(p)) / multiple * multiple);
  const int rings = static_cast<int>(round_up(even_blocks(p.rows, plan.groups, most), multiple));
  plan.blocks = rings * plan.cluster;
  plan.partial_rows = p.wants_dgamma ? rings : 0;
  // One more wherever the shift changes.
  if (p.wants_dgamma && !p.aligned && plan.cluster > 1)
    plan.partial_rows += static_cast<int>(std::min(p.rows, shift_period(p)) - 1);
  return plan;
}

/// As many rows in a launch as leave their dots in a bounded scratch, and these in as many chunks,
/// each of which leaves a partial row, as cost the least: the rows of a chunk, for every round of
/// the blocks that the device holds.
BackwardPlan long_plan(const Problem& p, const Device& device) {
  BackwardPlan plan;
  plan.path = BackwardPath::long_rows;
  plan.group_threads = kLongColumnThreads;
  const std::int64_t chunks_of_row = long_chunks(p);
  if (p.wants_dx) plan.dot_chunks = static_cast<int>(chunks_of_row);
  const std::int64_t dots = std::max(kLeastDotBytes / 4, p.cols / 16);
  plan.launch_rows = p.wants_dx ? std::min(p.rows, dots / (chunks_of_row + 1)) : p.rows;
  const std::int64_t column_blocks =
      ceil_div(slice_vectors(p, 1), p.aligned ? kLongBlockVectors<true> : kLongBlockVectors<false>);
  const bool is_simple = (p.aligned || p.one_shift) && p.gamma_bytes <= p.element_bytes;
  const std::int64_t resident =
      device.sms * (is_simple ? kLongColumnBlocks<true> : kLongColumnBlocks<false>);
  // Of a launch, in rows that a place is taken for.
  const auto cost = [&](std::int64_t chunks) {
    return ceil_div(plan.launch_rows, chunks) * round_up(column_blocks * chunks, resident);
  };
  const std::int64_t allowed =
      (kMaxPartialBytes - kLeastDotBytes) / (partial_pitch(p.cols) * std::int64_t{4});
  const std::int64_t most_chunks = std::min({plan.launch_rows, allowed, kMostRowChunks});
  std::int64_t chunks = 1;
  for (std::int64_t more = 2; more <= most_chunks; ++more) {
    if (cost(more) < cost(chunks)) chunks = more;
  }
  plan.blocks = static_cast<int>(column_blocks * chunks);
  plan.row_chunks = static_cast<int>(chunks);
  // One chunk needs no partial row where one launch has all rows.
  if (p.wants_dgamma && (chunks > 1 || plan.launch_rows < p.rows))
    plan.partial_rows = plan.row_chunks;
  return plan;
}

bool ring_takes(const Problem& p, const Device& device) {
  if (device.compute_capability < 90) return false;
  if (!p.aligned) return shifted_cluster(p) <= device.max_cluster;
  return ceil_div(row_vectors(p), device.max_cluster) <= 4 * kMaxBlockThreads;
}

}  // namespace

BackwardPlan plan_backward(const Problem& p, const Device& device) {
  if (p.float64 || is_few(p)) return split_plan(p, device);
  if (p.dense && is_shorter_than_vector(p)) return tiny_plan(p, device);
  if (!p.aligned && p.dense && p.cols <= kFrameMaxCols) {
    const BackwardPlan frame = frame_plan(p, device);
    if (frame_shared_bytes(p, frame) <= device.shared_bytes) return frame;
  }
  if (p.aligned ? row_vectors(p) <= 3 * kWarp : p.cols <= kWarp * kLaneElements) {
    const BackwardPlan lanes = lanes_plan(p, device);
    if (lanes.lanes > 0) return lanes;
  }
  if (groups_take(p)) return groups_plan(p, device);
  if (ring_takes(p, device)) {
    const BackwardPlan ring = ring_plan(p, device);
    if (ring_shared_bytes(p, ring) <= device.shared_bytes) return ring;
  }
  return device.compute_capability >= 90 ? long_plan(p, device) : split_plan(p, device);
}

std::int64_t shift_period(const Problem& p) {
  return kPackBytes / std::gcd(kPackBytes, row_bytes(p));
}

std::int64_t slice_vectors(const Problem& p, int cluster) {
  return ceil_div(p.aligned ? row_vectors(p) : frame_vectors(p), cluster);
}

std::uint32_t ring_part_bytes(const Problem& p, const BackwardPlan& plan) {
  const std::int64_t slice = slice_vectors(p, plan.cluster) * kPackBytes;
  const std::int64_t bytes = p.aligned          ? slice
                             : plan.cluster > 1 ? round_up(slice + kWindowSlack, 128)
                                                : round_up(row_bytes(p) + kWindowSlack, 128);
  return static_cast<std::uint32_t>(bytes);
}

std::size_t tiny_shared_bytes(const BackwardPlan& plan) {
  const std::int64_t warps = plan.group_threads / kWarp;
  // x and dy of a tile, and its rows' rstd.
  const std::int64_t stage = 2 * kWarp * plan.vectors * kPackBytes + 4 * plan.tile_rows;
  return static_cast<std::size_t>(warps * plan.stages * stage);
}

std::size_t frame_shared_bytes(const Problem& p, const BackwardPlan& plan) {
  const std::int64_t rows = plan.tile_rows, vectors = rows * row_bytes(p) / kPackBytes;
  // The rings, two factors of every row and of none behind, the parts of the rows' sums.
  return static_cast<std::size_t>(2 * plan.stages * vectors * kPackBytes + 8 * (rows + 1) +
                                  4 * (vectors + rows));
}

std::size_t ring_shared_bytes(const Problem& p, const BackwardPlan& plan) {
  const std::int64_t ring = std::int64_t{2} * plan.stages * plan.groups * ring_part_bytes(p, plan);
  return static_cast<std::size_t>(kRingFixedBytes + ring + fold_bytes(p, plan));
}

}  // namespace rmsnorm::kernels::cuda
