// See emit_arguments.h.
#include "src/cli/arguments/emit_arguments.h"

#include <fmt/format.h>

#include "src/cli/arguments/arguments.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/lower/model_places.h"

namespace lockstep {
namespace {

constexpr std::string_view kPython = ".py";

}  // namespace

CLI::Option* declare_emit(CLI::App& app, EmitWords& words) {
  std::vector<std::string> kinds;
  for (const EmitKind& kind : emit_kinds()) kinds.emplace_back(kind.name);
  return app
      .add_option("--emit", words,
                  fmt::format("write the policy for another program: {}; may be given several "
                              "times; see `lockstep list emit`",
                              join(kinds, ", ")))
      ->type_name("KIND FILE")
      ->allow_extra_args(false);
}

void check_emit(const EmitWords& words, bool overwrite, CommandFiles& files,
                ProblemList& problems) {
  for (const auto& [name, file] : words) {
    const EmitKind* kind = nullptr;
    collect_problems(problems, [&] { kind = &find_emit_kind(name); });
    if (kind == nullptr) continue;
    const std::string option = fmt::format("--emit {}", kind->name);
    check_text_output(option, file, kind->extension, overwrite, problems);
    files.output(option, file);
  }
}

void emit(const EmitWords& words, EmitFacts facts, bool quiet) {
  facts.policy = with_layers_for_places(facts.policy, facts.graph);
  for (const auto& [name, file] : words) {
    const EmitKind& kind = find_emit_kind(name);
    std::vector<std::string> unsaid;
    const std::string text = kind.write(facts, emitted_module(file), unsaid);
    write_text_file_atomically(file, text);
    for (const std::string& sentence : unsaid)
      print_note(fmt::format("note: {} cannot do: {}", file, sentence));
    if (quiet) continue;
    fmt::print("\n");
    print_line(fmt::format("Wrote {}: {}.", file, kind.use));
  }
}

std::pair<std::string, std::string> emitted_module(const EmitWords& words) {
  for (const auto& [name, file] : words) {
    if (file.ends_with(kPython)) return {name, emitted_module(file)};
  }
  return {"", "amp"};
}

void refuse_emit_pytorch(CLI::App& app, ProblemList& problems) {
  app.add_option_function<std::string>(
         "--emit-pytorch",
         [&problems](const std::string& file) {
           problems.add(fmt::format("--emit-pytorch {}: is now --emit KIND FILE", file),
                        fmt::format("--emit pytorch {}; scaled operands of linear layers: --emit "
                                    "torchao, --emit transformer-engine",
                                    file));
         })
      ->group("");  // not in --help
}

}  // namespace lockstep
