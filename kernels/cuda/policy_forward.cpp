#include "kernels/cuda/policy_rows.hpp"

namespace rmsnorm::kernels::cuda {
namespace {

constexpr std::int64_t kLaneVectors = 4;  // vectors that a lane holds of a row
// The longest rows in registers. Of those that start anywhere, few blocks fit an SM from here on,
// and less than 64 KB is in flight: they go to shared memory.
constexpr std::int64_t kForwardBlockVectors = 2048;
constexpr std::int64_t kForwardPeelVectors = 1280;
constexpr std::int64_t kFrameForwardBytes = 512;  // the longest rows that frames take

/// Whole warps that have a place for every vector of a row.
std::int64_t row_threads(std::int64_t vectors, int per_thread) {
  return round_up(ceil_div(vectors, per_thread), kWarp);
}

/// Vectors per thread of a block that has a row: two or more, because one 16-byte load per thread
/// leaves too few bytes in flight; not many, lest few blocks fit an SM. Three, but two where they
/// leave an eighth fewer places empty or where a wider gamma takes the registers, and four for the
/// longest rows. By cols and dtypes alone: they order the sums.
int block_vectors(const Problem& p, std::int64_t vectors) {
  const auto places = [&](int per_thread) { return per_thread * row_threads(vectors, per_thread); };
  if (vectors > 3 * kForwardThreadsOfThree) return p.element_bytes == 4 && vectors <= 1024 ? 2 : 4;
  const bool few_empty = places(2) * 9 <= places(3) * 8 || p.gamma_bytes > p.element_bytes;
  return vectors <= 512 && few_empty ? 2 : 3;
}

/// The same of rows that start anywhere.
int peel_vectors(const Problem& p, std::int64_t vectors) {
  return vectors <= (p.element_bytes == 4 ? 1024 : 512) ? 2 : 4;
}

/// Lanes for the sum of a row, by cols and dtype alone: they order it. Rows of whole vectors get
/// those of ForwardPath::lanes, so that they have the bits that they have there where they start at
/// a 16-byte boundary.
int forward_frame_lanes(const Problem& p) {
  const std::int64_t width = kPackBytes / p.element_bytes;
  return static_cast<int>(power_of_two_at_least(
      p.cols % width == 0 ? p.cols / width : ceil_div(row_pieces(p), kFrameLaneSlots)));
}

/// As many threads in a block as leave an SM with the most vectors at work, of those whose vectors
/// are whole periods; of equals the fewest, whose barriers hold up fewer.
ForwardPlan forward_frame_plan(const Problem& p, const Device& device) {
  constexpr std::int64_t kLeastThreads = 128;
  const std::int64_t width = kPackBytes / p.element_bytes;
  const std::int64_t period_rows = shift_period(p);
  const std::int64_t period_vectors = period_rows * p.cols / width;
  ForwardPlan plan;
  plan.path = ForwardPath::frame;
  plan.lanes = forward_frame_lanes(p);
  plan.vectors = kForwardFrameVectors;
  constexpr FrameShape shape = kForwardFrameShape;
  plan.stages = shape.stages;
  ForwardPlan best;
  std::int64_t most_at_work = 0, resident = 1;
  for (std::int64_t threads = kLeastThreads; threads <= shape.threads; threads += kWarp) {
    const std::int64_t periods =
        std::min(threads / period_vectors, threads / (plan.lanes * period_rows));
    if (periods == 0) continue;
    plan.threads = static_cast<int>(threads);
    plan.rows = static_cast<int>(plan.vectors * periods * period_rows);
    const std::int64_t fit = frame_resident(shape, threads, frame_shared_bytes(p, plan));
    const std::int64_t at_work = periods * period_vectors * fit;
    if (at_work <= most_at_work) continue;
    most_at_work = at_work;
    resident = fit;
    best = plan;
  }
  // Two blocks for every SM where there are few rows; the threads do not depend on them.
  const std::int64_t shared_out =
      round_up(ceil_div(p.rows, 2 * device.sms), best.vectors * period_rows);
  best.rows = static_cast<int>(std::min<std::int64_t>(best.rows, shared_out));
  best.blocks = even_blocks(p.rows, best.rows, resident * device.sms);
  return best;
}

/// Slices of 26 to 52 KB, four to six of which fit a block: with less, the blocks wait for each
/// other's sums and not for memory. Up to 64 KB for the longest rows; those that do not fit leave
/// the plan without stages.
ForwardPlan forward_ring_plan(const Problem& p, const Device& device) {
  constexpr std::int64_t kSliceVectors = 3328, kMostStages = 6;
  const std::int64_t vectors = row_vectors(p);
  ForwardPlan plan;
  plan.path = ForwardPath::ring;
  plan.threads = kMaxBlockThreads;
  plan.cluster = static_cast<int>(std::min<std::int64_t>(
      power_of_two_at_least(ceil_div(vectors, kSliceVectors)), device.max_cluster));
  const std::int64_t slice = slice_vectors(p, plan.cluster);
  plan.vectors = slice <= 4 * kMaxBlockThreads ? 4 : 8;
  if (slice > 8 * kMaxBlockThreads) return plan;
  const std::int64_t part = ring_part_bytes(p, plan);
  const std::int64_t room = static_cast<std::int64_t>(device.shared_bytes) - kRingFixedBytes;
  plan.stages = static_cast<int>(std::min(room / part, kMostStages));
  if (plan.stages < 2) plan.stages = 0;  // one is written while another is summed
  const std::int64_t clusters =
      std::max<std::int64_t>(1, std::min(resident_clusters(plan.cluster, device), p.rows));
  plan.blocks = static_cast<int>(clusters) * plan.cluster;
  plan.pace = 0.25f;
  return plan;
}

/// Blocks that share a row in shared memory, as few as leave an SM room for two of them: blocks of
/// a cluster wait for each other, and more so the more they are. Of the longest rows the largest
/// cluster's take more; none where they do not fit an SM even so.
int forward_cluster(const Problem& p, const Device& device) {
  constexpr std::int64_t kStatics = 2048;  // beside the slice: barriers and sums
  const auto shared = static_cast<std::int64_t>(device.shared_bytes);
  const std::int64_t wanted = shared / 2 - kStatics;
  const std::int64_t blocks =
      power_of_two_at_least(ceil_div(slice_vectors(p, 1), wanted / kPackBytes));
  const auto cluster = static_cast<int>(std::min<std::int64_t>(blocks, device.max_cluster));
  return slice_vectors(p, cluster) * kPackBytes <= shared - kStatics ? cluster : 0;
}

/// Whether L2 is to give up x's lines after those of y: once both fill half of it. Worth 2 to 4 %
/// of a forward on a cold cache from 128 MiB of x on, and after a flush by writing from 16 MiB on;
/// README.md has what it costs others. Rows that start anywhere gain less, and from four times that
/// on: those that forward_peel_kernel writes by the vectors that it reads. Seen, not explained, and
/// on sm_90 alone.
bool keeps_x(const Problem& p, const Device& device, ForwardPath path) {
  const std::int64_t bytes = p.rows * row_bytes(p);
  if (device.compute_capability != 90) return false;
  switch (path) {
    case ForwardPath::lanes:
    case ForwardPath::block:
    case ForwardPath::ring:
    case ForwardPath::cluster:
      return bytes >= device.l2_bytes / 4;
    case ForwardPath::peel:
    case ForwardPath::peel_warp:
      return p.one_shift && bytes >= device.l2_bytes;
    default:
      return false;
  }
}

ForwardPlan plan_path(const Problem& p, const Device& device) {
  ForwardPlan plan;
  if (p.float64) return plan;
  const std::int64_t vectors = row_vectors(p);
  if (is_shorter_than_vector(p)) {
    plan.path = ForwardPath::tiny;
    plan.threads = 256;
    return plan;
  }
  if (!p.aligned && row_bytes(p) <= kFrameForwardBytes) return forward_frame_plan(p, device);
  if (p.aligned && vectors <= kWarp * kLaneVectors) {
    plan.path = ForwardPath::lanes;
    plan.lanes = static_cast<int>(std::min(kWarp, power_of_two_at_least(vectors)));
    plan.vectors = static_cast<int>(power_of_two_at_least(ceil_div(vectors, plan.lanes)));
    plan.threads = kForwardLanesThreads;
    const int at_once = forward_rows_at_once(plan.vectors);
    const std::int64_t blocks = ceil_div(p.rows, at_once * plan.threads / plan.lanes);
    plan.rows = blocks >= 8 * device.sms ? at_once : 1;
    return plan;
  }
  if (!p.aligned && vectors - 1 <= kWarp * kLaneVectors) {
    plan.path = ForwardPath::peel_warp;
    plan.vectors = static_cast<int>(power_of_two_at_least(ceil_div(vectors - 1, kWarp)));
    plan.threads = 256;
    return plan;
  }
  // Peeled rows have no more whole vectors than aligned ones: 4097 columns fit as 4096 do.
  const std::int64_t whole = row_bytes(p) / kPackBytes;
  const bool has_clusters = device.compute_capability >= 90;
  const std::int64_t longest =
      p.aligned || !has_clusters ? kForwardBlockVectors : kForwardPeelVectors;
  if (whole <= longest) {
    plan.path = p.aligned ? ForwardPath::block : ForwardPath::peel;
    plan.vectors = p.aligned ? block_vectors(p, whole) : peel_vectors(p, whole);
    plan.threads = static_cast<int>(row_threads(whole, plan.vectors));
    return plan;
  }
  // Aligned rows stay with a block while three fit an SM, so that one loads while another sums and
  // a third writes; longer ones go to the ring. Up to 48 KB four blocks and more fit, and half the
  // threads each are enough.
  constexpr std::int64_t kAlignedVectors = 4096, kSmallSliceVectors = 3072;
  const std::int64_t held = slice_vectors(p, 1);
  if (has_clusters && p.aligned && held > kAlignedVectors) {
    const ForwardPlan ring = forward_ring_plan(p, device);
    if (ring.stages > 0) return ring;
  }
  if (!has_clusters) {
    plan.path = p.aligned ? ForwardPath::two_pass : ForwardPath::any;
    plan.threads = kMaxBlockThreads;
  } else if (const int cluster = forward_cluster(p, device); cluster > 0) {
    plan.path = ForwardPath::cluster;
    plan.cluster = cluster;
    plan.threads = held <= kSmallSliceVectors ? 256 : 512;
  } else {
    plan.path = ForwardPath::long_rows;
    plan.threads = kLongThreads;
    plan.chunks = long_chunks(p);
  }
  return plan;
}

}  // namespace

ForwardPlan plan_forward(const Problem& p, const Device& device) {
  ForwardPlan plan = plan_path(p, device);
  plan.keep_x = keeps_x(p, device, plan.path);
  return plan;
}

std::uint32_t ring_part_bytes(const Problem& p, const ForwardPlan& plan) {
  return static_cast<std::uint32_t>(slice_vectors(p, plan.cluster) * kPackBytes);
}

std::size_t ring_shared_bytes(const Problem& p, const ForwardPlan& plan) {
  return kRingFixedBytes + std::size_t{ring_part_bytes(p, plan)} * plan.stages;
}

int frame_piece_lanes(const Problem& p) {
  return static_cast<int>(std::min(kWarp, power_of_two_at_least(row_pieces(p))));
}

std::size_t frame_shared_bytes(const Problem& p, const ForwardPlan& plan) {
  const std::int64_t rows = plan.rows, vectors = rows * row_bytes(p) / kPackBytes;
  // The rings, rstd of every row and of none behind, the sums of the rows' pieces.
  return static_cast<std::size_t>(plan.stages * plan.vectors * plan.threads * kPackBytes +
                                  4 * (rows + 1) + 4 * (vectors + rows));
}

}  // namespace rmsnorm::kernels::cuda
