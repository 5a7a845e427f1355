// The kinds of findings: what each means and what can be done.
// One row per kind: its sentence, what follows from it, and remedies to try. The remedies are
// candidates; only running them shows whether they help.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/findings/finding_context.h"
#include "analysis/findings/remedy.h"

namespace lockstep {

struct FindingKindRow {
  FindingKind kind;
  std::string_view name, help, rule;  // rule: how it is decided
  bool breaks;                        // it can end a training: named first
  // "blocks.2.attn matmul (model.py:41) reaches 1.1e5, fp16 ends at 65504": no full stop.
  std::string (*sentence)(const FindingContext&);
  // "Loss scaling cannot help: it is the forward pass."; may be empty.
  std::string (*follows)(const FindingContext&);
  std::vector<Remedy> (*remedies)(const FindingContext&);
};
std::span<const FindingKindRow> finding_kinds();  // in the order of FindingKind
const FindingKindRow& row_of(FindingKind kind);
// It breaks a training, or makes the loss wrong at equal weights and the gradients, too: no answer
// leaves such a finding. A loss that is a small mean of large terms of both signs may be wrong
// alone.
bool is_grave(const Finding& finding);
// The remedies that a report suggests, in words.
std::vector<std::string> remedy_words(const FindingContext& context);

// "aten.addmm": the call of PyTorch that the site's op comes from, without its overload; "" if it
// is not known or has the name of our op ("aten.relu_", "aten.linear" of a linear_backward_input);
// what a user writes, "torch.autograd.grad", where a capture has a call of its own.
std::string torch_name(const Site& site);
// "blocks.2.attn matmul (aten.bmm, model.py:41)"; "(no layer)" where the module path is empty.
std::string place_text(const Site& site);
// Two significant digits, however small: "1.1e5", "65504", "0.034", "3.2e-7".
std::string two_digits(double value);
// "12%", "0.034%", "all".
std::string share_text(double share);

}  // namespace lockstep
