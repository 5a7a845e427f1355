// lockstep check: compares a run with a baseline; the exit code is the verdict.
#include <fmt/format.h>

#include <memory>

#include "analysis/check/check.h"
#include "reports/check_text.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

struct CheckArgs {
  std::string run, baseline;
  CheckOptions options;
};

int run_check(const CheckArgs& args) {
  if (!(args.options.rel_tol >= 0 && args.options.rel_tol < 1)) {
    throw InputError(fmt::format("--rel-tol {}: 0 <= X < 1 required", args.options.rel_tol));
  }
  const RunFile run(args.run), baseline(args.baseline);
  const CheckResult result = check_runs(run, baseline, args.options);
  fmt::print("{}", check_text(result, run.path(), baseline.path(), args.options));
  return static_cast<int>(result.verdict);
}

}  // namespace

std::function<int()> declare_check(CLI::App& app) {
  auto args = std::make_shared<CheckArgs>();
  app.add_option("RUN", args->run, "the run file to check")->type_name("")->required();
  app.add_option("--baseline", args->baseline, "a run file accepted as good")
      ->type_name("RUN")
      ->required();
  app.add_flag("--strict", args->options.strict, "sums and losses must have equal bits, too");
  const ArgumentChecks checks("check");
  checks.number(app.add_option("--rel-tol", args->options.rel_tol,
                               "relative tolerance of sums and losses [2 gamma_n: what another "
                               "summation order can change]")
                    ->type_name("X"));
  app.footer(
      "Bit hashes, counts, histograms and scaler states must be equal; sums and losses may differ\n"
      "by --rel-tol. Exit codes: 0 equal; 1 a regression, or a part of the baseline is missing;\n"
      "2 usage or file error; 3 not comparable (other model, data, policy or seed).");
  return [args, checks] {
    checks.problems().throw_if_any();
    return run_check(*args);
  };
}

}  // namespace lockstep
