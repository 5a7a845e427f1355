// What a monitor sends is read number by number; everything that is wrong in its header is reported
// at once, and a loop that is killed ends the stream.
#include "src/monitor/monitor_stream.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/run/lane_info.h"
#include "tests/monitor/monitored.h"
#include "tests/support/refusal.h"

namespace lockstep::testing {
namespace {

// Every number that the stream has of a site is another one.
SiteRecord numbered_site(uint64_t id) {
  const uint64_t base = 100 * (id + 1);
  const auto real = [&](uint64_t n) { return static_cast<double>(base + n) + 0.5; };
  const auto whole = [&](uint64_t n) { return static_cast<int64_t>(base + n); };
  SiteRecord site;
  site.measured = site.update.measured = true;
  site.stats.source_zero = base + 2;
  site.stats.nan = base + 3;
  site.update.stats.count = base + 94;
  site.update.stats.stagnant = base + 5;
  site.live.stagnant_bf16 = base + 6;
  site.scale = real(7);
  site.stats.abs_max = real(8);
  site.stats.sum_sq = real(9);
  site.update.stats.update_sq = real(10);
  site.update.stats.weight_sq = real(11);
  site.live.largest_rank = whole(12);
  site.live.largest_micro_batch = whole(13);
  site.live.nonfinite_rank = whole(14);
  site.live.nonfinite_micro_batch = whole(15);
  for (size_t bin = 0; bin < kHistogramBins; ++bin) {
    site.stats.exponent_histogram[bin] = 1000 * base + bin;
    site.stats.count += site.stats.exponent_histogram[bin];
  }
  return site;
}

StepRecord numbered_step(int64_t step, bool is_measured) {
  StepRecord record = monitored_step(step, is_measured);
  uint64_t id = 0;
  for (SiteRecord& site : record.lanes[0].sites) site = numbered_site(id++);
  return record;
}

// The error of a stream of one step.
std::string error_of_step(const nlohmann::json& head, const std::string& numbers) {
  const MonitoredRun run = monitored_run(monitored_header());
  std::istringstream in(head.dump() + "\n" + numbers);
  StepRecord record;
  return error_of([&] { read_monitored_step(in, run, record); });
}

std::string header_problems(const nlohmann::json& header) {
  return problems_in([&] { monitored_run(header); });
}

}  // namespace

TEST_CASE("a monitor's header becomes the description of a run with one lane") {
  const MonitoredRun run = monitored_run(monitored_header());
  const RunDescription description = run.description();
  CHECK(description.data == "live: Net, by hand");
  CHECK(description.step_graph->name == "Net");
  CHECK(description.options->model == "Net");
  CHECK(description.options->steps == kUnknownSteps);
  CHECK(description.options->measuring.statistics_every == 10);
  CHECK(description.options->measuring.histogram_every == 10);
  CHECK(description.options->groups.size() == 1);  // besides the first
  CHECK(run.group_count == 2);
  REQUIRE(description.lanes.size() == 1);
  const LaneDescription& lane = description.lanes[0];
  CHECK(lane.name == kLiveLane);
  CHECK(lane.engine == "pytorch");
  CHECK(lane.target == "cpu");
  CHECK_FALSE(lane.is_reference);
  CHECK(join(lane.site_formats, " ") == "fp32 fp16 fp16 fp16 fp16");
  REQUIRE(description.sites->sites.size() == kMonitoredSites);
  const Site& site = description.sites->sites[kFcGradWeight];
  CHECK(site.id == kFcGradWeight);
  CHECK(site.layer == "fc");
  CHECK(site.op == "Linear");
  CHECK(site.role == Role::kGradWeight);
  CHECK(site.point == Point::kOutput);
  CHECK(site.shape == Shape{20, 100});
  CHECK(site.node == "live:fc.weight:grad_weight");
  CHECK(site.scaled);
  CHECK_FALSE(description.sites->sites[kFcWeight].scaled);
  CHECK_FALSE(is_in_graph(site));
}

TEST_CASE("a monitor's steps are read number by number") {
  const MonitoredRun run = monitored_run(monitored_header());
  std::istringstream in(text_of(numbered_step(0, true)) + text_of(numbered_step(1, false)) +
                        text_of(numbered_step(2, true)));
  StepRecord record;
  for (int64_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    const StepRecord sent = numbered_step(step, step != 1);
    REQUIRE(read_monitored_step(in, run, record));
    CHECK(record.step == step);
    CHECK(record.is_measured == sent.is_measured);
    REQUIRE(record.lanes.size() == 1);
    const LaneStep& lane = record.lanes[0];
    CHECK(lane.loss == sent.lanes[0].loss);
    CHECK(lane.gradient_norm == sent.lanes[0].gradient_norm);
    CHECK(lane.seconds == sent.lanes[0].seconds);
    CHECK(lane.lr == sent.lanes[0].lr);
    REQUIRE(lane.scalers.size() == 1);
    CHECK(lane.scalers[0].scale == kMonitoredScale);
    REQUIRE(lane.sites.size() == sent.lanes[0].sites.size());
    // Written again, every number of the stream is the same.
    CHECK(numbers_of(record) == numbers_of(sent));
    for (const SiteRecord& site : lane.sites) CHECK((site.measured && site.update.measured));
  }
  CHECK_FALSE(read_monitored_step(in, run, record));
  // The layout itself, by hand: site 1's histogram, and nonfinite_micro_batch before all of them.
  CHECK(record.lanes[0].sites[1].stats.exponent_histogram[3] == 200'003);
  CHECK(record.lanes[0].sites[4].live.nonfinite_micro_batch == 515);
}

TEST_CASE("a monitor's scaler, and sites that a step lacks") {
  const MonitoredRun run = monitored_run(monitored_header());
  StepRecord sent = monitored_step(0, true);
  sent.lanes[0].scalers[0].found_inf = true;
  sent.lanes[0].sites[kFcOutput] = SiteRecord();
  sent.lanes[0].sites[kFcOutput].stats.abs_max = std::numeric_limits<double>::quiet_NaN();
  std::istringstream in(text_of(sent));
  StepRecord record;
  REQUIRE(read_monitored_step(in, run, record));
  CHECK(record.lanes[0].scalers[0].found_inf);
  CHECK_FALSE(record.lanes[0].scalers[0].skipped);
  CHECK_FALSE(record.lanes[0].sites[kFcOutput].measured);
  CHECK(record.lanes[0].sites[kFcWeight].update.measured);
  CHECK(record.lanes[0].sites[kFcGradWeight].measured);
  CHECK_FALSE(record.lanes[0].sites[kFcGradWeight].update.measured);
}

TEST_CASE("all that is wrong in a monitor's header is reported at once") {
  CHECK(header_problems(monitored_header()) == "");
  nlohmann::json header = monitored_header();
  header["version"] = 2;
  header["groups"] = 0;
  header["every"] = 0;
  header["device"] = "cu\x1b[2Jda";
  header["data"] = 5;
  header.erase("model");
  header["sites"][0]["role"] = "king";
  header["sites"][1]["shape"] = {3, -1};
  header["sites"][2]["format"] = "fp\n16";
  header["sites"][3]["scaled"] = "no";
  header["sites"][4]["shape"] = {1 << 30, 1 << 30};
  header["sites"].push_back(7);
  const std::string problems = header_problems(header);
  CAPTURE(problems);
  for (const char* part :
       {"'version' is 2, must be 1", "'groups' is 0, must be 1 to 65536",
        "'every' is 0, must be at least 1", "'device' is 'cu", "'data' is 5", "'model' is missing",
        "king", "'shape' has -1, must be at least 0", "'format' is 'fp", "'scaled' is \"no\"",
        "'shape' has more than 2^53 elements", "a site is not an object"}) {
    CAPTURE(part);
    CHECK(has(problems, part));
  }
  CHECK(split(problems, '\n').size() == 12);
}

TEST_CASE("groups and lists that are too long, and headers that are none") {
  nlohmann::json header = monitored_header();
  header["groups"] = 65'537;
  CHECK(has(header_problems(header), "'groups' is 65537, must be 1 to 65536"));
  header["groups"] = 65'536;
  CHECK(header_problems(header) == "");
  header["sites"] = "none";
  CHECK(has(header_problems(header), "'sites' must be a list"));
  for (const std::string text : {"", "{\"format\":", "[]\n", "{\"format\":\"other\"}\n"}) {
    CAPTURE(text);
    std::istringstream in(text);
    CHECK(has(error_of([&] { read_monitored_run(in); }), "lockstep_capture.Monitor"));
  }
}

TEST_CASE("a step of another number, of another size or with a wrong largest value is refused") {
  const StepRecord step = monitored_step(0, true);
  CHECK(error_of_step(head_of(step), numbers_of(step)) == "");
  nlohmann::json head = head_of(step);
  head["step"] = 1;
  CHECK(has(error_of_step(head, numbers_of(step)), "'step' is 1, must be 0"));
  head = head_of(step);
  head["bytes"] = 8;
  // 4 numbers, 2 learning rates, and 15 numbers and 256 bins of each of 5 sites
  CHECK(has(error_of_step(head, numbers_of(step)), "'bytes' is 8, must be 10888"));
  head = head_of(step);
  head["measured"] = false;
  CHECK(has(error_of_step(head, numbers_of(step)), "'bytes' is 10888, must be 48"));
  head.erase("skipped");
  CHECK(has(error_of_step(head, numbers_of(step)), "'skipped' is missing"));
  for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), -1.0}) {
    StepRecord bad = step;
    bad.lanes[0].sites[kLogits].stats.abs_max = wrong;
    CHECK(has(error_of_step(head_of(bad), numbers_of(bad)), "must be at least 0"));
  }
}

TEST_CASE("the second step must be the next one") {
  const MonitoredRun run = monitored_run(monitored_header());
  std::istringstream in(text_of(monitored_step(0, true)) + text_of(monitored_step(2, false)));
  StepRecord record;
  REQUIRE(read_monitored_step(in, run, record));
  CHECK(has(error_of([&] { read_monitored_step(in, run, record); }), "'step' is 2, must be 1"));
}

TEST_CASE("a stream that ends within a step has no such step") {
  const MonitoredRun run = monitored_run(monitored_header());
  const std::string first = text_of(monitored_step(0, false));
  const std::string second = text_of(monitored_step(1, false));
  for (size_t size = 0; size <= second.size(); ++size) {
    CAPTURE(size);
    std::istringstream in(first + second.substr(0, size));
    StepRecord record;
    REQUIRE(read_monitored_step(in, run, record));
    CHECK(read_monitored_step(in, run, record) == (size == second.size()));
    CHECK(record.step == (size == second.size() ? 1 : 0));
  }
  const std::string measured = text_of(monitored_step(0, true));
  std::istringstream in(measured.substr(0, measured.size() - 1));
  StepRecord record;
  CHECK_FALSE(read_monitored_step(in, run, record));
}

TEST_CASE("counts of a site that contradict each other are refused") {
  const auto problems = [](const std::function<void(SiteRecord&)>& change) {
    StepRecord step = numbered_step(0, true);
    change(step.lanes[0].sites[1]);
    const MonitoredRun run = monitored_run(monitored_header());
    std::istringstream in(text_of(step));
    StepRecord record;
    return error_of([&] { read_monitored_step(in, run, record); });
  };
  CHECK(problems([](SiteRecord&) {}).empty());
  for (const auto& change : std::vector<std::function<void(SiteRecord&)>>{
           [](SiteRecord& s) { s.stats.count += 1; },
           [](SiteRecord& s) { s.stats.source_zero = s.stats.exponent_histogram[0] + 1; },
           [](SiteRecord& s) { s.stats.nan = s.stats.exponent_histogram[255] + 1; },
           [](SiteRecord& s) { s.update.stats.stagnant = s.update.stats.count + 1; },
           [](SiteRecord& s) { s.live.stagnant_bf16 = s.update.stats.count + 1; }}) {
    CHECK(problems(change).find("contradict each other") != std::string::npos);
  }
}

TEST_CASE("a line ends the stream, though a child of the loop holds the pipe") {
  const MonitoredRun run = monitored_run(monitored_header());
  std::istringstream in(text_of(numbered_step(0, false)) + "{\"end\": true}\n" +
                        text_of(numbered_step(1, false)));
  StepRecord record;
  CHECK(read_monitored_step(in, run, record));
  CHECK_FALSE(read_monitored_step(in, run, record));
}

}  // namespace lockstep::testing
