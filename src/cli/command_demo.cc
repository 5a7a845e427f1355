// lockstep demo: what the program shows, on a network and data of its own. It runs other commands.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kTraining =
    "replay lenet --steps 200 --batch 64 --lanes "
    "fp32,twin,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16 --overwrite -o";

struct DemoArgs {
  std::string folder = "lockstep-demo";
};

int run_printed(const std::vector<std::string>& words) {
  set_command_line(words);
  fmt::print("$ {}\n", printable(command_line()));
  std::fflush(stdout);  // before the progress, which goes to standard error
  return run_command(words);
}

int demo(const DemoArgs& args) {
  make_output_folder(args.folder);
  // A name that begins with '-' would be read as an option.
  const std::filesystem::path folder =
      args.folder.starts_with('-') ? "./" + args.folder : args.folder;
  const std::string run = folder / "demo.h5", page = folder / "demo.html";
  fmt::print("Half a minute: lenet on synthetic digits, 200 steps in six lanes.\n");
  std::vector<std::string> training = split(kTraining, ' ');
  training.push_back(run);
  const int code = run_printed(training);
  if (code != kExitFine) return code;
  const int report_code = run_printed({"report", run, "--overwrite", "-o", page});
  if (report_code != kExitFine) return report_code;
  fmt::print(
      "\nnext:\n"
      "  open in a browser  {}\n"
      "  other formats      lockstep replay lenet --lanes "
      "fp32,torch-autocast-fp16@hopper,pure-bf16\n"
      "  your own model     lockstep_capture.debug(model, optimizer, loader, loss_of), in Python\n",
      printable(std::filesystem::absolute(page).string()));
  return kExitFine;
}

}  // namespace

std::function<int()> declare_demo(CLI::App& app) {
  auto args = std::make_shared<DemoArgs>();
  app.add_option("-o,--output", args->folder,
                 "a folder for the run file and the page; those of an earlier demo are replaced "
                 "[lockstep-demo]")
      ->type_name("FOLDER");
  return [args] { return demo(*args); };
}

}  // namespace lockstep
