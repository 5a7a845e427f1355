// A policy file with edits merged into it: keys of a table replace those that it has, rules are
// added at the end, where they win. Comments of the file are lost. Knows nothing of what keys mean,
// but for two tables: another `kind` of [loss_scale] or [scaling] begins afresh, because the old
// kind's numbers would be errors.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "analysis/findings/remedy.h"

namespace lockstep {

// `name`: of the policy, for its key of that name. Throws: InputError: `base` is not TOML.
std::string edited_policy(std::string_view base, std::string_view name,
                          std::span<const RemedyEdit> edits);
// The lines that the edits add, as one piece of TOML.
std::string added_lines(std::span<const RemedyEdit> edits);

}  // namespace lockstep
