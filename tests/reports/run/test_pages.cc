// The Markdown and HTML reports of a run written by hand, against golden files; text from outside
// that tries to become markup. LOCKSTEP_REWRITE_GOLDEN=1 rewrites the golden files.
#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "reports/run/report_format.h"
#include "reports/writers/html_page.h"
#include "reports/writers/html_writer.h"
#include "reports/writers/markdown_page.h"
#include "reports/writers/markdown_writer.h"
#include "src/core/text_file.h"
#include "tests/reports/run/hand_made_report.h"
#include "tests/support/folders.h"

namespace lockstep {
namespace {

using testing::hand_made;

using testing::kNan;

void check_golden(const std::string& name, const std::string& text) {
  const std::string golden = std::string(testing::kSourceFolder) + "/tests/golden/" + name;
  if (std::getenv("LOCKSTEP_REWRITE_GOLDEN") != nullptr) write_text_file_atomically(golden, text);
  CHECK(text == read_text_file(golden));
}

// Without what stands between the marks, of which there must be some.
std::string without(std::string text, const std::string& begin, const std::string& end) {
  const size_t from = text.find(begin);
  REQUIRE(from != std::string::npos);
  const size_t to = text.find(end, from + begin.size());
  REQUIRE(to != std::string::npos);
  return text.erase(from + begin.size(), to - from - begin.size());
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string html_of(const AdvisedReport& report, std::string_view charts = charts_script()) {
  return html_page(report_page(report, /*draws=*/true), charts);
}

std::string markdown_of(const Report& report) {
  return markdown_page(report_page(report, /*draws=*/false));
}

TEST_CASE("the Markdown report of a hand-made run is the golden one") {
  check_golden("report.md", markdown_of(hand_made()));
}

TEST_CASE("the HTML report of a hand-made run, without style and script, is the golden one") {
  Report report = hand_made();
  testing::add_pictures(report);
  std::string page = html_of(testing::advised(report), "charts");
  page = without(std::move(page), "<style>", "</style>");
  page = without(std::move(page), "<script>", "</script>");
  check_golden("report.html", without(std::move(page), "'sha256-", "'"));
}

TEST_CASE("HTML without charts: their tables are open, and the page says so; with them, closed") {
  constexpr const char* kSaid = "This build of Lockstep draws no charts";
  const std::string without_charts = html_of(hand_made(), "");
  CHECK(count(without_charts, kSaid) == 1);
  CHECK(count(without_charts, "<details open><summary>Table") > 0);
  CHECK(count(without_charts, "<details><summary>Table") == 0);
  CHECK(count(without_charts, "<script>") == 1);
  CHECK(count(without_charts, "'sha256-") == 1);
  const std::string with_charts = html_of(hand_made(), "draw()");
  CHECK(count(with_charts, kSaid) == 0);
  CHECK(count(with_charts, "<details open>") == 0);
  CHECK(count(with_charts, "<details><summary>Table") > 0);
  CHECK(count(with_charts, "<script>") == 2);
  CHECK(count(with_charts, "'sha256-") == 2);
}

TEST_CASE("the script of charts cannot end its element, and keeps its licences") {
  const std::string script(charts_script());
  if (script.empty()) {
    MESSAGE("SKIPPED: this build draws no charts (LOCKSTEP_CHARTS, or no npm)");
    return;
  }
  for (const std::string part : {"</script", "<script", "<!--"}) {
    CAPTURE(part);
    CHECK(count(script, part) == 0);
  }
  for (const std::string part : {"Apache License, Version 2.0", "Baidu", "Bostock", "Microsoft"}) {
    CAPTURE(part);
    CHECK(count(script.substr(0, 5000), part) > 0);
  }
  CHECK(script.size() < 700'000);
}

TEST_CASE("HTML: a hostile name stays text, wherever it stands") {
  const std::string name = "</script><img src=x onerror=\"alert('1')\">&amp;`x`";
  Report report = hand_made();
  const std::string plain = html_of(report);
  for (Site& site : report.sites.sites) site.layer = name;
  for (LaneReport& lane : report.lanes) lane.info.name += name;
  for (LayerHealth& health : report.lanes[3].health) health.layer = name;
  report.lanes[3].updates[0].layer = name;
  report.path = report.command_line = report.options.model = report.environment[name] = name;
  const std::string page = html_of(report);
  for (const std::string part : {"<img", "</script", "<script", "</title", "onerror=\""}) {
    CAPTURE(part);
    CHECK(count(page, part) == count(plain, part));
  }
  CHECK(count(page,
              "&lt;/script&gt;&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;"
              "&amp;amp;") > 20);
}

TEST_CASE("Markdown: a hostile name stays text, wherever it stands") {
  const std::string name = "<img src=x>|[a](https://b)`x`*@user #12 www.c.d _e_";
  CHECK(markdown_text(name) ==
        "&lt;img src=x&gt;\\|\\[a\\](https&#58;//b)`x`\\*\\@<!-- -->user \\#<!-- -->12 www\\.c.d "
        "\\_e\\_");
  CHECK(markdown_text("one ` only") == "one \\` only");
  CHECK(markdown_text("snake_case") == "snake_case");
  TableBlock table;
  table.columns = {{"a", Align::kLeft}, {"n"}};
  table.rows = {{"x|y`z", "1"}};
  table.notes = {"1. not a list"};
  CHECK(to_markdown({table}) ==
        "| a | n |\n| :--- | ---: |\n| x\\|y\\`z | 1 |\n\n1\\. not a list\n");
  const std::string fenced = to_markdown({verbatim("a\n```\nb")});
  CHECK(fenced == "````\na\n```\nb\n````\n");
}

TEST_CASE("Markdown: long tables are collapsed, and a long report fits a comment") {
  Report report = hand_made();
  std::vector<LayerHealth>& health = report.lanes[3].health;
  const LayerHealth row = health.back();
  while (health.size() < 60) health.push_back(row);
  CHECK(markdown_of(report).find("<details><summary>60 rows</summary>") != std::string::npos);
  report.sites.sites[1].layer = std::string(1000, 'x');
  const std::string page = markdown_of(report);
  CHECK(page.size() <= kMostMarkdownBytes);
  CHECK(page.find("see the text or HTML report: What rounding did, layer by layer.") !=
        std::string::npos);
  CHECK(page.find("Where this comes from") != std::string::npos);  // a shorter one still fits
}

TEST_CASE("the verdict leads a page, also of a capture whose replay is not faithful") {
  Report report = hand_made();
  report.options.capture_hash = "0123";
  report.verification = Verification();
  report.verification->passed = false;
  CHECK(markdown_of(report).find("Do not trust these results") == std::string::npos);
  report.verification->gates = {VerifiedGate{"V3", "", "FAIL", "", {}}};
  const std::string page = markdown_of(report);
  CHECK(page.find("### Verdict\n❌ **Do not trust these results**: the replay does not do what the "
                  "model does.") != std::string::npos);
  CHECK(page.find("### Verdict") < page.find("### Is the import faithful?"));
}

TEST_CASE("no format has the name or the ending of another") {
  for (const ReportFormat& a : report_formats()) {
    CAPTURE(a.name);
    CHECK(find_report_format(a.name) == &a);
    REQUIRE_FALSE(a.endings.empty());
    for (const std::string_view ending : a.endings) {
      CHECK(report_format_of_file("x" + std::string(ending)) == &a);
    }
    if (a.write != nullptr) CHECK_FALSE(a.write(hand_made(), {}).empty());
  }
  CHECK(report_format_of_file("run.h5") == nullptr);
}

}  // namespace
}  // namespace lockstep
