// See place.h.
#include "src/policy/place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr double kWhole = 100;       // percent
constexpr double kMostBlocks = 1e6;  // far above any model's

// The number before an optional '%', all of the word; nullopt: something else.
std::optional<double> number_of(const std::string& word) {
  const bool is_decimal =
      !word.empty() && word.find_first_not_of("0123456789.") == std::string::npos;
  if (!is_decimal) return std::nullopt;
  try {
    size_t used = 0;
    const double number = std::stod(word, &used);
    if (used == word.size()) return number;
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

// "block" after "first" or "last"; "2 blocks"; "15% of blocks".
std::optional<Place> blocks_named(const std::vector<std::string>& words) {
  Place place{.from_end = words[0] == "last"};
  if (words.size() == 2 && words[1] == "block") {
    place.count = 1;
    return place;
  }
  if (words.size() == 3 && words[2] == "blocks") {
    const auto count = number_of(words[1]);
    if (!count || *count < 1 || *count > kMostBlocks || *count != std::floor(*count)) {
      return std::nullopt;
    }
    place.count = static_cast<int64_t>(*count);
    return place;
  }
  if (words.size() != 4 || words[2] != "of" || words[3] != "blocks" || !words[1].ends_with('%')) {
    return std::nullopt;
  }
  const auto percent = number_of(words[1].substr(0, words[1].size() - 1));
  if (!percent || !(*percent > 0 && *percent <= kWhole)) return std::nullopt;
  place.percent = *percent;
  return place;
}

}  // namespace

int64_t Place::blocks_of(int64_t all) const {
  if (count > 0) return std::min(count, all);
  // A share that is a whole number of blocks stays it, whatever the division rounds.
  constexpr double kSlack = 1e-9;
  return static_cast<int64_t>(std::ceil(static_cast<double>(all) * percent / kWhole - kSlack));
}

Place find_place(const std::string& text) {
  if (text == "head") return {.part = PlacePart::kHead};
  if (text == "first layer") return {.part = PlacePart::kFirstLayer};
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() > 1 && (words[0] == "first" || words[0] == "last")) {
    if (const auto place = blocks_named(words)) return *place;
  }
  throw InputError("place '" + text + "': unknown",
                   "first block, last block, first 2 blocks, last 2 blocks, last 15% of blocks, "
                   "head, first layer");
}

std::string to_string(const Place& place) {
  if (place.part == PlacePart::kHead) return "head";
  if (place.part == PlacePart::kFirstLayer) return "first layer";
  const std::string end = place.from_end ? "last " : "first ";
  if (place.count == 1) return end + "block";
  if (place.count > 0) return fmt::format("{}{} blocks", end, place.count);
  return fmt::format("{}{:g}% of blocks", end, place.percent);
}

}  // namespace lockstep
