// The files that a policy can be written to for other programs: a row for each kind.
// A file says what its program can do; what it cannot is a list of sentences, which the file's
// first lines carry, too.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/emit/emit_facts.h"

namespace lockstep {

struct EmitKind {
  std::string_view name, extension;
  std::string_view help;  // of --emit: what the file is for
  std::string_view says;  // the parts of a policy that it can hold
  std::string_view use;   // what to do with the file, for the screen
  // `module`: the file's name without its extension.
  std::string (*write)(const EmitFacts& facts, const std::string& module,
                       std::vector<std::string>& unsaid);
};
std::span<const EmitKind> emit_kinds();
// Throws: InputError with a did-you-mean.
const EmitKind& find_emit_kind(std::string_view name);

// "mine" of "out/mine.py".
std::string emitted_module(const std::string& file);

}  // namespace lockstep
