// The JSON text of a baseline. One metric of one lane is one line, so that a diff of two baselines
// can be read.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "analysis/check/baseline.h"
#include "analysis/pair/settings.h"
#include "src/core/error.h"
#include "src/core/sealed_text.h"
#include "src/core/text_hash.h"
#include "src/record/run/options_json.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kSpreadDigits = 3;
constexpr int kOpenLevels = 4;  // of nesting with a line per member

// std::stod takes subnormal numbers for errors.
double number_of(const std::string& digits) {
  return std::strtod(digits.c_str(), nullptr);
}

// As many digits as matter: a tenth of the metric's floor, or three of the spread.
double rounded(double x, const Metric& metric, double spread) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double unit = std::max(metric.floor / 100, spread / 1000);
  if (unit == 0) return x;
  const double step = std::pow(10, std::floor(std::log10(unit)));
  // Through decimal text, so that it is printed short.
  const int decimals = static_cast<int>(std::max(0.0, -std::log10(step) + 0.5));
  return number_of(fmt::format("{:.{}f}", x, decimals));
}
double short_spread(double x) {
  return number_of(fmt::format("{:.{}g}", x, kSpreadDigits));
}

// A table of texts that occur often, so that a site takes a line of small numbers.
class Words {
 public:
  size_t of(const std::string& word) {
    const auto [at, is_new] = numbers_.emplace(word, words_.size());
    if (is_new) words_.push_back(word);
    return at->second;
  }
  const std::vector<std::string>& all() const { return words_; }

 private:
  std::map<std::string, size_t> numbers_;
  std::vector<std::string> words_;
};

Json identity_json(const RunFacts& run) {
  Words words;
  Json nodes = Json::array(), sites = Json::array(), parameters = Json::array(),
       lanes = Json::array(), settings = Json::object();
  for (const NodeFacts& n : run.nodes) {
    nodes.push_back({words.of(n.op), words.of(n.layer), words.of(n.source_line), n.attributes});
  }
  for (const SiteFacts& s : run.sites) {
    sites.push_back({words.of(s.layer), words.of(s.op), words.of(s.role), words.of(s.point),
                     s.index, words.of(s.shape), words.of(s.source_line)});
  }
  for (const ParameterFacts& p : run.parameters) parameters.push_back({p.name, p.shape});
  for (const auto& [name, value] : setup_in_words(run.options)) settings[name] = value;
  for (const LaneFacts& lane : run.lanes) {
    lanes.push_back({{"name", lane.name},
                     {"engine", lane.engine},
                     {"target", lane.target},
                     {"policy", lane.policy_text}});
  }
  return {{"data", run.data},
          {"batches_hash", run.batches_hash},
          {"lines", Json::parse(to_json(run.lines))},
          {"seed", run.options.seed},
          {"settings", settings},
          {"lanes", lanes},
          {"parameters", parameters},
          {"words", words.all()},
          {"nodes", nodes},
          {"sites", sites}};
}

Json bands_json(const LaneBands& lane) {
  Json out = Json::object();
  for (const Metric& metric : metrics()) {
    const std::vector<Band>& bands = lane.bands[static_cast<size_t>(metric.id)];
    Json row = Json::object();
    for (size_t s = 0; s < bands.size(); ++s) {
      const Band& band = bands[s];
      if (!band.is_there()) continue;
      Json numbers = {band.is_exact() ? Json() : Json(rounded(band.centre, metric, band.spread)),
                      short_spread(band.spread)};
      if (!band.always) numbers.push_back(0);
      row[std::to_string(s)] = std::move(numbers);
    }
    if (!row.empty()) out[std::string(metric.name)] = std::move(row);
  }
  Json exponents = Json::object();
  for (size_t s = 0; s < lane.exponents.size(); ++s) {
    if (!lane.has_exponents[s]) continue;
    Json numbers = Json::array();
    for (const double q : lane.exponents[s]) {
      numbers.push_back(rounded(q, metric_row(MetricId::kExponents), 0));
    }
    exponents[std::to_string(s)] = std::move(numbers);
  }
  if (!exponents.empty()) out["exponent_quantiles"] = std::move(exponents);
  return out;
}

void write(const Json& j, int level, std::string& out) {
  const bool opens = level < kOpenLevels && j.is_object() && !j.empty();
  if (!opens) {
    out += j.dump();
    return;
  }
  const std::string indent(static_cast<size_t>(level) + 1, ' ');
  out += "{\n";
  bool is_first = true;
  for (const auto& [key, value] : j.items()) {
    out += (is_first ? "" : ",\n") + indent + Json(key).dump() + ": ";
    is_first = false;
    write(value, level + 1, out);
  }
  out += "\n" + std::string(static_cast<size_t>(level), ' ') + "}";
}

// "settings" and "seed" are for readers: the options say the same.
void read_identity(const Json& j, RunFacts& run) {
  j.at("data").get_to(run.data);
  j.at("batches_hash").get_to(run.batches_hash);
  if (j.contains("lines")) run.lines = script_lines_from_json(j.at("lines").dump());
  const auto words = j.at("words").get<std::vector<std::string>>();
  const auto word = [&](const Json& number) { return words.at(number.get<size_t>()); };
  for (const Json& n : j.at("nodes")) {
    run.nodes.push_back({word(n.at(0)), word(n.at(1)), word(n.at(2)),
                         n.at(3).get<std::map<std::string, std::string>>()});
  }
  for (const Json& s : j.at("sites")) {
    run.sites.push_back({.layer = word(s.at(0)),
                         .op = word(s.at(1)),
                         .role = word(s.at(2)),
                         .point = word(s.at(3)),
                         .index = s.at(4).get<int>(),
                         .shape = word(s.at(5)),
                         .source_line = word(s.at(6))});
  }
  for (const Json& p : j.at("parameters")) {
    run.parameters.push_back({p.at(0).get<std::string>(), p.at(1).get<std::string>()});
  }
  for (const Json& lane : j.at("lanes")) {
    run.lanes.push_back({lane.at("name"), lane.at("engine"), lane.at("target"), lane.at("policy")});
  }
}

size_t subject_from(const std::string& text, size_t limit) {
  size_t used = 0;
  const size_t subject = std::stoul(text, &used);
  if (used != text.size() || subject >= limit) throw std::out_of_range("subject " + text);
  return subject;
}

LaneBands bands_from(const Json& j, const RunFacts& run) {
  LaneBands lane;
  lane.bands.resize(metrics().size());
  for (const auto& [name, row] : j.items()) {
    if (name == "exponent_quantiles") {
      lane.exponents.resize(run.sites.size());
      lane.has_exponents.assign(run.sites.size(), false);
      for (const auto& [subject, numbers] : row.items()) {
        const size_t s = subject_from(subject, run.sites.size());
        lane.exponents[s] = numbers.get<ExponentQuantiles>();
        lane.has_exponents[s] = true;
      }
      continue;
    }
    const Metric* metric = find_metric(name);
    if (metric == nullptr) continue;  // of a later version that still says it can be read
    constexpr size_t kMostGroups = 1 << 16;
    const size_t limit = metric->of == MetricOf::kSite        ? run.sites.size()
                         : metric->of == MetricOf::kParameter ? run.parameters.size()
                         : metric->of == MetricOf::kGroup     ? kMostGroups
                                                              : 1;
    std::vector<Band>& bands = lane.bands[static_cast<size_t>(metric->id)];
    for (const auto& [subject, numbers] : row.items()) {
      const size_t s = subject_from(subject, limit);
      if (s >= bands.size()) bands.resize(s + 1);
      const double exact = -std::numeric_limits<double>::infinity();
      bands[s] = {numbers.at(0).is_null() ? exact : numbers.at(0).get<double>(),
                  numbers.at(1).get<double>(), numbers.size() == 2};
    }
  }
  return lane;
}

}  // namespace

std::string text_hash(const std::string& text) {
  return fmt::format("{:016x}", fnv1a(text));
}

std::string to_json(const Baseline& b) {
  Json history = Json::array();
  for (const BaselineEntry& entry : b.history) {
    history.push_back({{"created_utc", entry.created_utc},
                       {"lockstep_version", entry.lockstep_version},
                       {"reason", entry.reason},
                       {"keys", entry.keys}});
  }
  Json ensembles = Json::object(), findings = Json::object(), bits = Json::object();
  for (const Draw draw : {Draw::kSame, Draw::kOther}) {
    const Ensemble& ensemble = b.ensemble(draw);
    Json lanes = Json::object();
    for (size_t lane = 0; lane < ensemble.lanes.size(); ++lane) {
      lanes[b.run.lanes[lane].name] = bands_json(ensemble.lanes[lane]);
    }
    ensembles[std::string(to_string(draw))] = {{"runs", ensemble.runs}, {"lanes", lanes}};
  }
  for (size_t lane = 0; lane < b.run.lanes.size(); ++lane) {
    findings[b.run.lanes[lane].name] = b.findings[lane];
    bits[b.run.lanes[lane].name] = b.step_bits[lane];
  }
  Json whole = {
      {"format", kBaselineFormat},  {"version", kBaselineVersion},
      {"history", history},         {"environment", b.run.environment},
      {"steps", b.run.steps},       {"options", Json::parse(options_to_json(b.run.options))},
      {"policies", b.policy_texts}, {"identity", identity_json(b.run)},
      {"findings", findings},       {"step_bits", bits},
      {"ensembles", ensembles}};
  if (!b.proposed_for.empty()) whole["proposed_for"] = b.proposed_for;
  std::string text;
  write(whole, 0, text);
  return sealed(text + "\n");
}

namespace {

// The parser and the writer recurse: text from outside must not nest deeper than ours does.
void check_depth(const std::string& text, const std::string& path) {
  constexpr int kMostDepth = 32;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\') ++i;
      in_string = i >= text.size() || text[i] != '"';
    } else if (text[i] == '"') {
      in_string = true;
    } else if (text[i] == '[' || text[i] == '{') {
      if (++depth > kMostDepth) {
        throw InputError(fmt::format("{}: nested deeper than {} levels", path, kMostDepth),
                         "no baseline is");
      }
    } else if (text[i] == ']' || text[i] == '}') {
      --depth;
    }
  }
}

// Numbers that no recording writes.
void check_numbers(const Baseline& b) {
  constexpr int64_t kMostRuns = 1'000'000, kMostSteps = 1'000'000'000;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::out_of_range(what);
  };
  require(b.run.steps >= 1 && b.run.steps <= kMostSteps, "steps");
  for (const Ensemble& ensemble : b.ensembles) {
    require(ensemble.runs >= 0 && ensemble.runs <= kMostRuns, "runs");
    for (const LaneBands& lane : ensemble.lanes) {
      for (const std::vector<Band>& bands : lane.bands) {
        for (const Band& band : bands) {
          if (!band.is_there()) continue;
          require(band.is_exact() || std::isfinite(band.centre), "centre");
          require(std::isfinite(band.spread) && band.spread >= 0, "spread");
        }
      }
    }
  }
}

}  // namespace

Baseline baseline_from_json(const std::string& text, const std::string& path) {
  check_depth(text, path);
  Baseline b;
  b.path = path;
  const auto not_whole = [&] {
    throw InputError(fmt::format("{}: not a whole baseline", path),
                     "restore it from version control, or record it anew");
  };
  try {
    const Json j = Json::parse(text);
    if (j.value("format", "") != kBaselineFormat) {
      throw InputError(fmt::format("{}: not a baseline", path),
                       "make one with `lockstep baseline record`");
    }
    const int version = j.at("version").get<int>();
    if (version != kBaselineVersion) {
      throw InputError(fmt::format("{}: version {} of the format; this program reads version {}",
                                   path, version, kBaselineVersion),
                       "record it anew, or use the Lockstep that wrote it");
    }
    for (const Json& entry : j.at("history")) {
      b.history.push_back({entry.at("created_utc"), entry.at("lockstep_version"),
                           entry.at("reason"), entry.at("keys")});
    }
    j.at("environment").get_to(b.run.environment);
    j.at("steps").get_to(b.run.steps);
    b.proposed_for = j.value("proposed_for", "");
    j.at("policies").get_to(b.policy_texts);
    try {
      b.run.options = options_from_json(j.at("options").dump());
      read_identity(j.at("identity"), b.run);
    } catch (const InputError&) {
      not_whole();
    }
    for (const Draw draw : {Draw::kSame, Draw::kOther}) {
      const Json& from = j.at("ensembles").at(std::string(to_string(draw)));
      Ensemble& ensemble = b.ensembles[static_cast<size_t>(draw)];
      from.at("runs").get_to(ensemble.runs);
      for (const LaneFacts& lane : b.run.lanes) {
        if (!from.at("lanes").contains(lane.name)) continue;
        ensemble.lanes.push_back(bands_from(from.at("lanes").at(lane.name), b.run));
      }
      if (ensemble.runs > 0 && ensemble.lanes.size() != b.run.lanes.size()) {
        throw std::out_of_range("lanes of an ensemble");
      }
    }
    for (const LaneFacts& lane : b.run.lanes) {
      b.findings.push_back(j.at("findings").at(lane.name).get<std::vector<std::string>>());
      b.step_bits.push_back(j.at("step_bits").at(lane.name).get<std::vector<std::string>>());
    }
    check_numbers(b);
  } catch (const nlohmann::json::exception&) {
    not_whole();
  } catch (const std::out_of_range&) {
    throw InputError(fmt::format("{}: its parts do not fit together", path),
                     "restore it from version control, or record it anew");
  } catch (const std::invalid_argument&) {
    throw InputError(fmt::format("{}: its parts do not fit together", path),
                     "restore it from version control, or record it anew");
  }
  return b;
}

}  // namespace lockstep
