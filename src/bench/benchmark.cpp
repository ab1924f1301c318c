#include "bench/benchmark.hpp"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "bench/calls.hpp"
#include "bench/timer.hpp"
#include "bench/verify.hpp"
#include "check/check.hpp"
#include "core/files.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::bench {
namespace {

// Calls that move less than an 8th of the cache that they can count on stay as they are: hot, and
// said so.
constexpr std::int64_t kRotateFrom = 8;
constexpr std::int64_t kRotateCaches = 4;  // what all copies of the inputs together move
constexpr std::int64_t kMostBuffers = 32;
constexpr std::int64_t kWarmupReplays = 3;

/// Copies of the inputs that complete calls take in turn: one where the calls move several times
/// the cache anyway, or so little that a program's own calls would find them in the cache too.
std::int64_t buffers_for(std::int64_t bytes, const Timer& timer) {
  const std::int64_t cache_bytes = timer.cache_bytes();
  if (bytes >= kRotateCaches * cache_bytes || bytes * kRotateFrom <= timer.near_cache_bytes())
    return 1;
  return std::min(kMostBuffers, (kRotateCaches * cache_bytes + bytes - 1) / bytes);
}

std::string cache_text(Protocol protocol, std::int64_t bytes, std::int64_t cache_bytes,
                       std::int64_t buffers) {
  if (protocol == Protocol::cold) return "flushed by reading";
  if (protocol == Protocol::cold_write) return "flushed by writing";
  if (buffers > 1) return "inputs in turn";
  return bytes <= cache_bytes ? "hot" : "larger than the cache";
}

ComparisonResult as_result(State state, const std::exception& error) {
  ComparisonResult result;
  result.state = state;
  result.reason = first_line(error.what());
  return result;
}

struct Contestant {
  Subject subject;
  ComparisonResult check;
};

/// One case: its inputs, and the measurements on them.
class CaseBenchmark {
 public:
  CaseBenchmark(const Task& task, const Config& config, const at::Device& device, Timer& timer,
                const Hooks& hooks)
      : task_(task),
        config_(config),
        device_(device),
        timer_(timer),
        hooks_(hooks),
        inputs_(task.problem, case_seed(config.seed, task.problem.name()), device) {
    dense_problem_.layout = Layout::contiguous;
    if (task.problem.layout != Layout::contiguous) {
      dense_inputs_.emplace(dense_problem_, case_seed(config.seed, dense_problem_.name()), device);
    }
  }

  CheckedCase check(const Subject& subject) {
    const Case& problem = task_.problem;
    CheckedCase checked{problem, subject.name, {}, false};
    checked.sampled = problem.rows > config_.benchmark.full_check_elements / problem.cols;
    try {
      checked.result = checked.sampled ? check_sample(subject) : check_all(subject);
    } catch (const ContractError& error) {
      checked.result = as_result(State::unimplemented, error);
    } catch (const std::exception& error) {
      checked.result = as_result(State::error, error);
    }
    return checked;
  }

  void measure(const std::vector<Contestant>& contestants, Protocol protocol, Pass pass) {
    Row row;
    row.problem = task_.problem;
    row.protocol = protocol;
    row.pass = pass;
    row.bytes = bytes_moved(pass, task_.problem);
    if (protocol == Protocol::calls && task_.problem.layout == Layout::contiguous) {
      row.buffers = buffers_for(row.bytes, timer_);
    }
    row.cache = cache_text(protocol, row.bytes, timer_.cache_bytes(), row.buffers);

    if (protocol == Protocol::calls) {
      measure_in_turn(contestants, row);
      return;
    }
    Timing copy = start_copy(row);
    take_samples(copy);
    row.floor_us = finish(copy);
    for (const Contestant& contestant : contestants) {
      Timing timing = start(contestant, row);
      take_samples(timing);
      finish(timing);
    }
  }

 private:
  /// One column of a measurement on its way: without a call it has its state and reason already.
  struct Timing {
    Row row;
    std::function<ComparisonResult(const Outputs&)> judge;
    std::optional<Call> call;
    std::unique_ptr<Replay> replay;  // what the last replay left lives as long as this
    std::vector<double> samples_us;

    /// Runs `step` if there is a call; what it throws is the end of this timing alone.
    template <class Step>
    void attempt(Step step) {
      if (!call) return;
      try {
        step();
      } catch (const std::exception& error) {
        end(State::error, first_line(error.what()));
      }
    }
    void end(State state, std::string reason) {
      call.reset();
      row.state = state;
      row.reason = std::move(reason);
      row.time = {};
    }
  };

  template <class Make>
  Timing start(Row row, std::string_view implementation, Make make,
               std::function<ComparisonResult(const Outputs&)> judge) {
    hooks_.between();
    row.implementation = implementation;
    Timing timing{std::move(row), std::move(judge), {}, {}, {}};
    const std::string refusal =
        timing.row.protocol == Protocol::graph ? timer_.capture_refusal() : std::string();
    if (!refusal.empty()) {
      timing.end(State::skipped, refusal);
      return timing;
    }
    try {
      timing.call.emplace(make());
    } catch (const std::exception& error) {
      timing.end(State::error, first_line(error.what()));
    }
    return timing;
  }

  Timing start_copy(const Row& row) {
    return start(
        row, kCopy, [&] { return copy_call(row); },
        [this](const Outputs& outputs) {
          ComparisonResult result;
          result.reason = copy_mistake(outputs, dense_inputs());
          result.state = result.reason.empty() ? State::passed : State::failed;
          return result;
        });
  }

  Timing start_empty(const Row& row) {
    return start(
        row, kFloor, [&] { return empty_call(row.pass, setting(), inputs_in_turn(row)); },
        [](const Outputs&) {
          ComparisonResult result;
          result.state = State::passed;
          return result;
        });
  }

  Timing start(const Contestant& contestant, const Row& row) {
    if (contestant.check.state != State::passed) {
      Timing refused{row, {}, {}, {}, {}};
      refused.row.implementation = contestant.subject.name;
      refused.end(contestant.check.state,
                  "not timed, as its check did not pass: " + contestant.check.reason);
      return refused;
    }
    return start(
        row, contestant.subject.name,
        [&] {
          return row.protocol == Protocol::calls
                     ? complete_call(contestant.subject, row.pass, setting(), inputs_in_turn(row))
                     : kernel_call(contestant.subject, row.pass, setting());
        },
        [this](const Outputs& outputs) {
          return verify(outputs, task_.problem, inputs_, config_);
        });
  }

  /// Complete calls, a sample of each column in turn: what slows the machine down for a while slows
  /// all of them.
  void measure_in_turn(const std::vector<Contestant>& contestants, const Row& row) {
    std::vector<Timing> timings;
    timings.push_back(start_copy(row));
    timings.push_back(start_empty(row));
    for (const Contestant& contestant : contestants) timings.push_back(start(contestant, row));

    const BenchmarkConfig& settings = config_.benchmark;
    for (Timing& timing : timings) timing.attempt([&] { warm_up(*timing.call); });
    for (std::int64_t i = 0; i < settings.samples; ++i) {
      for (Timing& timing : timings) {
        hooks_.between();
        timing.attempt([&] {
          timing.call->run();  // takes back the caches that the others have used
          const double elapsed_us = timer_.elapsed_us([&] {
            for (std::int64_t k = 0; k < settings.calls_per_sample; ++k) timing.call->run();
          });
          timing.samples_us.push_back(elapsed_us / static_cast<double>(settings.calls_per_sample));
        });
      }
    }
    in_turn_.reset();
    const double floor_us = finish(timings[0]);
    for (Timing& timing : timings) timing.row.floor_us = floor_us;
    const double empty_us = finish(timings[1]);
    for (std::size_t i = 2; i < timings.size(); ++i) {
      timings[i].row.empty_us = empty_us;
      finish(timings[i]);
    }
  }

  /// The inputs that the columns of protocol `calls` share: each call takes the next.
  std::shared_ptr<InputsInTurn> inputs_in_turn(const Row& row) {
    if (!in_turn_) {
      in_turn_ = std::make_shared<InputsInTurn>(call_tensors(inputs_, row.buffers, true));
    }
    return in_turn_;
  }

  /// The samples of a protocol whose columns are timed one after the other.
  void take_samples(Timing& timing) {
    const BenchmarkConfig& settings = config_.benchmark;
    timing.attempt([&] {
      const auto one = [&] { timing.call->run(); };
      const auto repeat = [&](auto sample) {
        for (std::int64_t i = 0; i < settings.samples; ++i) timing.samples_us.push_back(sample());
      };
      if (timing.row.protocol == Protocol::graph) {
        const std::int64_t calls = settings.calls_per_sample;
        timing.replay = timer_.capture(one, settings.warmup_calls, calls);
        for (std::int64_t i = 0; i < kWarmupReplays; ++i) timing.replay->elapsed_us();
        repeat([&] { return timing.replay->elapsed_us() / static_cast<double>(calls); });
        return;
      }
      warm_up(*timing.call);
      const Flush flush = timing.row.protocol == Protocol::cold ? Flush::read : Flush::write;
      timer_.cold_us(one, flush);  // the first one makes the buffer
      repeat([&] { return timer_.cold_us(one, flush); });
    });
  }

  void warm_up(Call& call) {
    for (std::int64_t i = 0; i < config_.benchmark.warmup_calls; ++i) call.run();
    timer_.synchronize();
  }

  /// Judges what the timed calls left, hands the row out and returns its median, 0 for none.
  double finish(Timing& timing) {
    Row& row = timing.row;
    timing.attempt([&] {
      row.time = summarize(timing.samples_us);
      if (row.implementation == kCopy) row.floor_us = row.time.median_us;
      timer_.synchronize();
      const ComparisonResult result = timing.judge(timing.call->outputs());
      row.state = result.state;
      row.reason = result.state == State::passed ? "" : "the timed call: " + result.reason;
      doubt(row);
    });
    timing.replay.reset();
    timing.call.reset();
    hooks_.timed(row);
    return row.time.median_us;
  }

  /// Nothing is faster than the copy on a cold cache.
  void doubt(Row& row) const {
    if (row.implementation == kCopy || row.state != State::passed) return;
    const std::string reason = reason_to_mistrust(row.protocol, row.time.median_us, row.floor_us,
                                                  row.bytes, timer_.cache_bytes());
    if (reason.empty()) return;
    row.state = State::mistrusted;
    row.reason = reason;
  }

  CallSetting setting() const {
    return {task_.problem, inputs_, config_.epsilon, config_.contract, device_};
  }

  Call copy_call(const Row& row) {
    const CallSetting setting{dense_problem_, dense_inputs(), config_.epsilon, config_.contract,
                              device_};
    if (row.protocol == Protocol::calls) {
      return complete_copy(
          row.pass, setting,
          dense_inputs_ ? std::make_shared<InputsInTurn>(call_tensors(*dense_inputs_, 1, false))
                        : inputs_in_turn(row));
    }
    const Subject copy{std::string(kCopy),
                       &copy_table(device_.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU), nullptr};
    return kernel_call(copy, row.pass, setting);
  }

  ComparisonResult check_all(const Subject& subject) const {
    InProcessRunner runner(subject);
    ComparisonResult worst;
    bool first = true;
    for (const Operation operation : {Operation::forward, Operation::backward, Operation::gamma}) {
      ComparisonResult result = check_case(operation, task_.problem, runner, config_, device_);
      if (result.state == State::skipped) continue;
      if (result.state != State::passed) {
        result.reason = std::string(command_name(operation)) + ": " + result.reason;
      }
      if (first || worse(result.state, worst.state) != worst.state) worst = std::move(result);
      first = false;
      if (worst.state != State::passed) break;
    }
    return worst;
  }

  /// For cases whose every element would take longer to check than to time.
  ComparisonResult check_sample(const Subject& subject) {
    ComparisonResult worst;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Call call = kernel_call(subject, pass, setting());
      call.run();
      timer_.synchronize();
      worst = verify(call.outputs(), task_.problem, inputs_, config_);
      if (worst.state != State::passed) break;
    }
    return worst;
  }

  const CaseInputs& dense_inputs() const { return dense_inputs_ ? *dense_inputs_ : inputs_; }

  const Task& task_;
  const Config& config_;
  at::Device device_;
  Timer& timer_;
  const Hooks& hooks_;
  CaseInputs inputs_;
  Case dense_problem_ = task_.problem;
  std::optional<CaseInputs> dense_inputs_;  // of the copy, where the case's own are not dense
  std::shared_ptr<InputsInTurn> in_turn_;   // of the measurement on its way
};

std::map<std::string, Subject> find_all(const std::vector<Task>& tasks, const Hooks& hooks) {
  std::map<std::string, Subject> subjects;
  for (const Task& task : tasks) {
    for (const std::string& implementation : task.implementations) {
      if (!subjects.contains(implementation)) {
        subjects.emplace(implementation, hooks.find(implementation));
      }
    }
  }
  return subjects;
}

}  // namespace

std::int64_t row_count(const std::vector<Task>& tasks) {
  std::int64_t count = 0;
  for (const Task& task : tasks) {
    for (const auto& [protocol, pass] : task.measurements) {
      count += static_cast<std::int64_t>(task.implementations.size()) + 1 +
               (protocol == Protocol::calls ? 1 : 0);
    }
  }
  return count;
}

void run_benchmark(const std::vector<Task>& tasks, const Config& config, const at::Device& device,
                   const Hooks& hooks) {
  const c10::OptionalDeviceGuard guard(device.is_cuda() ? std::optional(device) : std::nullopt);
  const std::map<std::string, Subject> subjects = find_all(tasks, hooks);
  const std::unique_ptr<Timer> timer = make_timer(device);
  for (const Task& task : tasks) {
    hooks.between();
    CaseBenchmark benchmark(task, config, device, *timer, hooks);
    std::vector<Contestant> contestants;
    for (const std::string& implementation : task.implementations) {
      hooks.between();
      const CheckedCase checked = benchmark.check(subjects.at(implementation));
      hooks.checked(checked);
      contestants.push_back({subjects.at(implementation), checked.result});
    }
    for (const auto& [protocol, pass] : task.measurements) {
      benchmark.measure(contestants, protocol, pass);
    }
  }
}

}  // namespace rmsnorm::bench
