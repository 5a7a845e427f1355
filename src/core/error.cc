// Builds messages: one problem takes one line, several are listed under the subject, and a
// misspelt name gets the nearest known one as a suggestion.
#include "src/core/error.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "src/core/text.h"

namespace lockstep {
namespace {

std::string with_hint(std::string problem, const std::string& hint) {
  if (!hint.empty()) problem += "; " + hint;
  return problem;
}

std::string describe(std::string_view subject, const std::vector<std::string>& problems) {
  if (problems.empty()) throw std::logic_error("InputError without a problem");
  if (problems.size() == 1) return std::string(subject) + ": " + problems[0];
  std::string text = std::string(subject) + ": " + std::to_string(problems.size()) + " problems";
  for (const std::string& problem : problems) text += "\n  - " + problem;
  return text;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The cost of turning a into b by insertions, deletions, substitutions and swaps of neighbours
// (Damerau-Levenshtein, no substring edited twice). A swap is the likeliest slip and costs half.
constexpr size_t kSwap = 1, kEdit = 2;
size_t edit_distance(std::string_view a, std::string_view b) {
  std::array<std::vector<size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  auto& [before_last, last, current] = rows;
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j * kEdit;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i * kEdit;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : kEdit);
      current[j] = std::min({last[j] + kEdit, current[j - 1] + kEdit, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before_last[j - 2] + kSwap);
      }
    }
    std::swap(before_last, last);
    std::swap(last, current);
  }
  return last[b.size()];
}

}  // namespace

InputError::InputError(std::string problem, std::string hint)
    : std::runtime_error(with_hint(problem, hint)),
      problems_{with_hint(std::move(problem), hint)} {}

InputError::InputError(std::string_view subject, std::vector<std::string> problems)
    : std::runtime_error(describe(subject, problems)), problems_(std::move(problems)) {}

void ProblemList::add(std::string problem, std::string hint) {
  if (++count_ <= kMostKept) problems_.push_back(with_hint(std::move(problem), hint));
}

void ProblemList::throw_if_any() const {
  if (empty()) return;
  std::vector<std::string> all = problems_;
  if (count_ > kMostKept) all.push_back("... and " + std::to_string(count_ - kMostKept) + " more");
  throw InputError(subject_, std::move(all));
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string wanted = lower_case(name);
  // Names cut at '_' or '-': "hopper" for hopper_fp16, "fp4" for fp4_e2m1, "apex" for apex-o1.
  std::vector<std::string> longer;
  for (const std::string& candidate : candidates) {
    const std::string known = lower_case(candidate);
    if (!wanted.empty() && (known.starts_with(wanted + "_") || known.starts_with(wanted + "-"))) {
      longer.push_back(candidate);
    }
  }
  if (longer.size() == 1) return "did you mean '" + longer[0] + "'?";
  if (longer.size() > 1) return "did you mean one of " + join(longer, ", ") + "?";
  const std::string* nearest = nullptr;
  // A third of the letters may be wrong; beyond that a suggestion would be a guess.
  constexpr size_t kLettersPerMistake = 3;
  size_t nearest_distance = 0;
  for (const std::string& candidate : candidates) {
    const auto [shortest, longest] = std::minmax({wanted.size(), candidate.size()});
    const size_t most = kEdit * ((longest + kLettersPerMistake - 1) / kLettersPerMistake);
    if (kEdit * (longest - shortest) > most) continue;  // at least as many insertions
    const size_t distance = edit_distance(wanted, lower_case(candidate));
    if (distance > most) continue;
    if (nearest != nullptr && distance >= nearest_distance) continue;
    nearest = &candidate;
    nearest_distance = distance;
  }
  if (nearest != nullptr) return "did you mean '" + *nearest + "'?";
  if (candidates.empty()) return "there are no names to choose from";
  return "known: " + join(candidates, ", ");
}

}  // namespace lockstep
