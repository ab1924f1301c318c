#include <fmt/format.h>

#include "cli/app.hpp"
#include "cli/console.hpp"
#include "train/data.hpp"

namespace rmsnorm::cli {

void add_acquire_command(Program& program) {
  add_subcommand(
      program, "acquire",
      "Make the synthetic train, validation and test splits with a manifest of SHA-256 sums",
      [](Context& context) {
        const TrainConfig& train = context.config.train;
        write_dataset(context.data_dir(), draw_dataset(train, context.config.seed), train,
                      context.config.seed);
        static_cast<void>(read_dataset(context.data_dir(), train, context.config.seed));
        context.report.section("data") = {{"dir", context.data_dir().string()},
                                          {"train", train.train_examples},
                                          {"validation", train.validation_examples},
                                          {"test", train.test_examples}};
        context.report.passes_without_cases();
        if (context.options.quiet) return;
        print_line(fmt::format(
            "{}: {} train, {} validation, {} test examples of {} inputs, {} outputs; "
            "nothing was downloaded",
            context.data_dir().string(), train.train_examples, train.validation_examples,
            train.test_examples, train.inputs, train.outputs));
      });
}

}  // namespace rmsnorm::cli
