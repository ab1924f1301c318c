#pragma once

#include <cstddef>
#include <cstdint>

// Which kernel runs a problem, and how it is launched: plain data from plain numbers, tested
// without a GPU. What orders a forward's sums depends on cols, dtypes and alignment alone, never on
// rows: the bits of a row do not change with its batch.

namespace rmsnorm::kernels::cuda {

/// What the choice may depend on.
struct Problem {
  std::int64_t rows = 0, cols = 0;
  int element_bytes = 4;  ///< of x
  int gamma_bytes = 4;    ///< of gamma (x's where there is none)
  bool aligned = true;  ///< every pointer and row stride is a multiple of 16 bytes, and so is a row
  bool dense = false;   ///< rows follow each other without gaps, the first at a 16-byte boundary
  /// Not aligned, but row by row x and y (x, dy and dx) start equally far past a 16-byte boundary;
  /// in a forward, gamma starts at one. Of a forward it decides how y is written, not which path it
  /// takes.
  bool one_shift = false;
  bool float64 = false;
  bool wants_dx = true, wants_dgamma = true;
};

struct Device {
  int sms = 132;
  int compute_capability = 90;
  int max_cluster = 8;                    ///< 16 where the non-portable size is allowed
  std::size_t shared_bytes = 227 * 1024;  ///< that a block may ask for
  std::int64_t l2_bytes = std::int64_t{60} << 20;
};

enum class ForwardPath {
  lanes,      ///< some lanes of a warp per row
  block,      ///< a thread block per row, the row in registers
  ring,       ///< a cluster of blocks per row, persistent, fed by a ring of bulk copies (sm_90)
  cluster,    ///< a cluster of blocks per row, or one block, the row in shared memory (sm_90)
  long_rows,  ///< longer ones: sums of chunks of rows first, then y by chunks (sm_90)
  two_pass,   ///< a thread block per row, read twice, the second time from L2
  tiny,       ///< rows shorter than a vector: a thread for some of them
  frame,      ///< short rows that start anywhere, a vector long or longer: where they are dense,
              ///< whole vectors of as many rows as start alike together, persistent; else in place
  peel_warp,  ///< short rows that start anywhere, as peel: a warp per row, eight in a block
  peel,       ///< rows that start anywhere: vectors inside, single elements at the ends
  any,        ///< element by element: float64, and what none of the above takes
};

struct ForwardPlan {
  ForwardPath path = ForwardPath::any;
  int lanes = 0;        ///< per row (lanes); that sum up a row's pieces (frame)
  int threads = 0;      ///< per block
  int vectors = 0;      ///< 16-byte vectors per thread and row, or tile of rows (frame)
  int cluster = 1;      ///< blocks per row
  int rows = 1;         ///< per lane group (lanes), per block at a time (frame)
  int stages = 0;       ///< rows of the ring; tiles (frame)
  int blocks = 0;       ///< of the grid (ring, frame)
  float pace = 0;       ///< rows that a block may be ahead of the mean; 0: not held back
  int chunks = 0;       ///< of a row, each with a float32 sum in the workspace (long_rows)
  bool keep_x = false;  ///< L2 gives up x's lines after all others
};

/// Threads of a block that takes rows by lanes of a warp: few, so that its barrier holds up few.
/// And rows that a lane group takes at once, where that leaves blocks for every SM.
constexpr int kForwardLanesThreads = 128;
constexpr int forward_rows_at_once(int vectors) {
  return vectors <= 2 ? 4 : 2;
}

/// Threads at most of a block whose threads have three vectors of a row each.
constexpr int kForwardThreadsOfThree = 320;

/// For one row or more.
ForwardPlan plan_forward(const Problem& problem, const Device& device);

enum class BackwardPath {
  lanes,   ///< some lanes of a warp per row, persistent blocks
  groups,  ///< groups of warps per row, a ring of copies for each thread, persistent
  ring,    ///< groups of warps per row fed by a ring of bulk copies, persistent blocks or clusters
  frame,   ///< short dense rows that start anywhere: whole vectors of as many rows as start alike
           ///< together, in registers, persistent
  tiny,    ///< dense rows shorter than a vector: whole vectors of as many as that takes in a
           ///< thread, a ring of copies for each warp, persistent
  split,   ///< dx by rows, dgamma by columns, each reading x and dy: tiny problems, and whatever no
           ///< other path takes
  long_rows,  ///< rows that no ring holds: the dots of all, then dx and dgamma by columns (sm_90)
};

struct BackwardPlan {
  BackwardPath path = BackwardPath::split;
  int lanes = 0;          ///< per row (lanes); that sum up a row's parts (frame)
  int groups = 1;         ///< rows at work in a block (groups, ring)
  int tile_rows = 0;      ///< rows taken at a time by a block (frame), a warp (tiny)
  int group_threads = 0;  ///< threads per row (groups, ring); per block (the others)
  int vectors = 0;        ///< 16-byte vectors per thread and row, or tile of rows (frame, tiny)
  int stages = 0;         ///< rows of the ring; tiles (frame, tiny)
  int cluster = 1;        ///< blocks that share a row
  int blocks = 0;         ///< of the grid
  float pace = 0;         ///< rows that a block may be ahead of the mean; 0: not held back
  int partial_rows = 0;   ///< rows of float32 partial sums of dgamma in the workspace
  int row_blocks = 0;     ///< of a split grid, those that compute dx
  std::int64_t launch_rows = 0;  ///< that a launch takes (long_rows)
  int row_chunks = 1;            ///< of these, each with blocks of its own (long_rows)
  int dot_chunks = 0;            ///< of a row, each with its dot in the workspace (long_rows)
  int column_threads = 0;        ///< columns of a split grid's dgamma block, in units of one access
};

BackwardPlan plan_backward(const Problem& problem, const Device& device);

/// Floats between two partial rows: cols rounded up to 4.
constexpr std::int64_t partial_pitch(std::int64_t cols) {
  return (cols + 3) / 4 * 4;
}

/// Blocks whose threads have rings of their own have so many threads at most, one block per SM.
constexpr int kThreadRingBlock = 512;

/// Rows in the rings: short ones leave little on its way in each; three vectors per lane free their
/// stage late. More made no difference to groups.
constexpr int lanes_ring_stages(int vectors) {
  return vectors == 1 ? 4 : vectors == 2 ? 2 : 3;
}
constexpr int kGroupsStages = 2;

/// Bytes of shared memory of a block of such rings for x and dy.
constexpr std::size_t thread_ring_bytes(int vectors, int stages) {
  return std::size_t{2} * 16 * kThreadRingBlock * vectors * stages;
}

/// Of long rows: threads of a block that has a chunk of a row, and vectors of that for each of
/// them; threads of a block that has a vector of columns for each of them.
constexpr int kLongThreads = 512, kLongChunkVectors = 8, kLongColumnThreads = 128;

/// Vectors of columns whose dgamma such a block has: of rows that start anywhere one less than
/// threads, since so many columns may lie in a vector more.
template <bool kAligned>
constexpr int kLongBlockVectors = kAligned ? kLongColumnThreads : kLongColumnThreads - 1;

/// Such blocks that an SM has registers for; fewer where vectors are joined from two, or beside a
/// gamma wider than x.
template <bool kIsSimple>
constexpr int kLongColumnBlocks = kIsSimple ? 8 : 6;

/// Floats in the workspace before the partial rows, a multiple of 4: dots of the chunks of a
/// launch's rows, and what they come to for each row.
constexpr std::int64_t long_floats(const BackwardPlan& plan) {
  return plan.dot_chunks == 0 ? 0 : (plan.launch_rows * (plan.dot_chunks + 1) + 3) / 4 * 4;
}

/// Rows that the stages of a ring hold for all groups together.
constexpr std::int64_t kMaxRingSlots = 48;

/// Threads that share the longest rows that start anywhere, or a slice of one: with the warp that
/// issues the copies sixteen warps, which may have 128 registers each.
constexpr int kShiftedThreads = 480;

/// Rows after which rows that start anywhere start equally far past a 16-byte boundary again.
std::int64_t shift_period(const Problem& problem);

/// What comes before the stages in a ring block's shared memory: barriers and sums.
constexpr std::size_t kRingHeaderBytes = 7168;

/// Vectors of a row, or of the frame of one that starts anywhere, per block of a cluster.
std::int64_t slice_vectors(const Problem& problem, int cluster);

/// Bytes of a stage for x, and as many for dy: a block's slice of a row, or the window around one.
std::uint32_t ring_part_bytes(const Problem& problem, const BackwardPlan& plan);

/// The same for the slice of a forward's ring.
std::uint32_t ring_part_bytes(const Problem& problem, const ForwardPlan& plan);
std::size_t ring_shared_bytes(const Problem& problem, const ForwardPlan& plan);

/// The kernel for frames of so many vectors per thread: the most threads of a block, the blocks of
/// that many that an SM has registers for, the tiles under way.
struct FrameShape {
  int threads, blocks, stages;
};
constexpr int kFrameMaxVectors = 3;
constexpr FrameShape frame_shape(int vectors) {
  return vectors == 1   ? FrameShape{320, 3, 4}
         : vectors == 2 ? FrameShape{320, 2, 4}
                        : FrameShape{384, 2, 3};
}

/// The same for the forward. Two vectors per thread share what is known about them and every step
/// between tiles: 25 instructions in 127 less for each.
constexpr int kForwardFrameVectors = 2;
constexpr FrameShape kForwardFrameShape{256, 4, 4};

/// Lanes that hold a piece each of a row that starts anywhere and is read in place, two where there
/// are more pieces than lanes in a warp.
int frame_piece_lanes(const Problem& problem);

/// Bytes of dynamic shared memory of a block of frames.
std::size_t frame_shared_bytes(const Problem& problem, const BackwardPlan& plan);
std::size_t frame_shared_bytes(const Problem& problem, const ForwardPlan& plan);

/// The kernel for rows shorter than a vector of which some are so many vectors together: the
/// threads of a block, the blocks that an SM has room for, the tiles under way in a warp.
struct TinyShape {
  int threads, blocks, stages;
};
constexpr TinyShape tiny_shape(int vectors) {
  return vectors == 1   ? TinyShape{256, 3, 4}
         : vectors <= 3 ? TinyShape{256, 2, 3}
         : vectors <= 5 ? TinyShape{256, 2, 2}
                        : TinyShape{192, 2, 2};
}

/// Bytes of dynamic shared memory of its block.
std::size_t tiny_shared_bytes(const BackwardPlan& plan);

/// Bytes of dynamic shared memory of a ring block.
std::size_t ring_shared_bytes(const Problem& problem, const BackwardPlan& plan);

}  // namespace rmsnorm::kernels::cuda
