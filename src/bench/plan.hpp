#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cases.hpp"
#include "core/config.hpp"

namespace rmsnorm::bench {

enum class Pass { forward, backward, forward_backward };

enum class Protocol {
  calls,       ///< complete calls: allocation, autograd, launches
  cold,        ///< device time of one call after the cache was flushed by reading
  cold_write,  ///< the same after it was flushed by writing: dirty lines drain during the call
  graph,       ///< replays of captured calls, on a warm cache where the tensors fit it
};

std::string_view name(Pass pass);
std::string_view name(Protocol protocol);

/// Whether the protocol times the pass: calls takes forward and forward_backward (a backward alone
/// would be a difference of two times), the others forward and backward.
bool times(Protocol protocol, Pass pass);

/// The bytes that the pass must move through memory at least: 2bMN forward (x, y), 3bMN backward
/// (x, dy, dx), both for forward_backward; b bytes an element. gamma, rstd and dgamma are left out.
std::int64_t bytes_moved(Pass pass, const Case& problem);

/// One case, who is timed on it, and how.
struct Task {
  Case problem;
  std::vector<std::string> implementations;
  std::vector<std::pair<Protocol, Pass>> measurements;
};

/// The tasks of the config's `benchmark` section in order, those whose case's name matches
/// `pattern` (empty: all).
std::vector<Task> plan(const Config& config, std::string_view pattern);

/// Why a cold time cannot be believed; empty when it can. `floor_us` is the copy of the same bytes
/// in the same protocol: nothing that moves them is faster by more than the scatter of that time.
/// Below the cache's size the writes may stay in the cache, so nothing is said there.
std::string reason_to_mistrust(Protocol protocol, double median_us, double floor_us,
                               std::int64_t bytes, std::int64_t cache_bytes);

}  // namespace rmsnorm::bench
