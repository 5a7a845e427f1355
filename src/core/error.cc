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

// Long enough for every list of names; a message of megabytes would be useless.
constexpr size_t kMostBytes = 8192, kHeadBytes = 4096, kTailBytes = 2048;

// The number of bytes of the whole characters among the first `most` bytes.
size_t whole_characters(std::string_view text, size_t most) {
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return most;
}

// printable(), and without the middle where it is very long: the constraint that a value breaks,
// and the hint, are at the end.
std::string one_line(std::string_view text) {
  if (text.size() > kMostBytes) {
    const size_t head = whole_characters(text, kHeadBytes);
    const size_t tail = whole_characters(text, text.size() - kTailBytes);
    return printable(text.substr(0, head)) + " [" + std::to_string(tail - head) +
           " bytes left out] " + printable(text.substr(tail));
  }
  return printable(text);
}

std::string with_hint(const std::string& problem, const std::string& hint) {
  return hint.empty() ? one_line(problem) : one_line(problem) + "; " + one_line(hint);
}

std::vector<std::string> one_line_each(std::vector<std::string> problems) {
  for (std::string& problem : problems) problem = one_line(problem);
  return problems;
}

std::string describe(std::string_view subject, const std::vector<std::string>& problems) {
  if (problems.empty()) throw std::logic_error("InputError without a problem");
  if (problems.size() == 1) return one_line(subject) + ": " + problems[0];
  std::string text = one_line(subject) + ": " + std::to_string(problems.size()) + " problems";
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

InputError::InputError(const std::string& problem, const std::string& hint)
    : std::runtime_error(with_hint(problem, hint)), problems_{with_hint(problem, hint)} {}

InputError::InputError(std::string_view subject, const std::vector<std::string>& problems)
    : std::runtime_error(describe(subject, one_line_each(problems))),
      subject_(one_line(subject)),
      problems_(one_line_each(problems)) {}

std::vector<std::string> InputError::lines() const {
  if (subject_.empty()) return problems_;
  std::vector<std::string> lines;
  for (const std::string& problem : problems_) lines.push_back(subject_ + ": " + problem);
  return lines;
}

void ProblemList::add(const std::string& problem, const std::string& hint) {
  if (++count_ <= kMostKept) problems_.push_back(with_hint(problem, hint));
}

void ProblemList::throw_if_any() const {
  if (empty()) return;
  std::vector<std::string> all = problems_;
  if (count_ > kMostKept) all.push_back("... and " + std::to_string(count_ - kMostKept) + " more");
  throw InputError(subject_, all);
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
