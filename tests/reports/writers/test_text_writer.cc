// Widths, wrapping and single numbers.
#include "reports/writers/text_writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

TEST_CASE("text is wrapped at spaces, a long word gets a line of its own") {
  CHECK(wrap("aa bb cc", 5) == "aa bb\ncc\n");
  CHECK(wrap("aa bbbbbbbb cc", 5, " ") == " aa\n bbbbbbbb\n cc\n");
  CHECK(wrap("", 5) == "\n");
}

TEST_CASE("columns are as wide as their widest cell, UTF-8 counted by characters") {
  CHECK(display_width("█▁x") == 3);
  TableBlock table;
  table.columns = {{"name", Align::kLeft}, {"n"}};
  table.rows = {{"█", "10"}, {"abcdef", "7"}};
  CHECK(to_text({table}) ==
        "  name     n\n"
        "  ------  --\n"
        "  █       10\n"
        "  abcdef   7\n");
}

TEST_CASE("a table too wide for the page loses the middle of its widest left-aligned column") {
  TableBlock table;
  table.columns = {{"a", Align::kLeft}, {"b"}};
  table.rows = {{"head" + std::string(200, 'x') + "tail", "1"}};
  for (const std::string& line : split(to_text({table}), '\n')) {
    CHECK(display_width(line) <= kTextWidth);
  }
  const std::string text = to_text({table});
  CHECK(text.find("  headx") != std::string::npos);
  CHECK(text.find("x…x") != std::string::npos);
  CHECK(text.find("xtail  1") != std::string::npos);
}

TEST_CASE("names cannot control a terminal or begin a line of their own") {
  const std::string name = "a\x1b[2J\nb";
  TableBlock table;
  table.columns = {{name, Align::kLeft}, {"n"}};
  table.rows = {{Cell(name), Cell("1")}};
  table.notes = {name};
  const std::string text =
      to_text({paragraph(name + " " + name, Tone::kBad, name.size()), verbatim(name), Block(table)},
              {.colour = true});
  CHECK(text ==
        "\x1b[1;31ma\\u001b[2J\\u000ab\x1b[0m a\\u001b[2J\\u000ab\n"
        "\n  a\\u001b[2J\n  b\n"
        "\n"
        "  a\\u001b[2J\\u000ab  n\n"
        "  -----------------  -\n"
        "  a\\u001b[2J\\u000ab  1\n"
        "  a\\u001b[2J\\u000ab\n");
}

TEST_CASE("a terminal's width: prose up to kTextWidth columns, tables the whole of it") {
  const std::string prose(400, 'x');
  std::string words;
  for (int i = 0; i < 100; ++i) words += "word ";
  TableBlock table;
  table.columns = {{"a", Align::kLeft}};
  table.rows = {{prose}};
  for (const int width : {60, 80, 160}) {
    const TextStyle style{.width = width};
    const auto widest = [&](const Blocks& blocks) {
      int most = 0;
      for (const std::string& line : split(to_text(blocks, style), '\n')) {
        most = std::max(most, display_width(line));
      }
      return most;
    };
    CHECK(widest({paragraph(words)}) <= std::min(width, kTextWidth));
    CHECK(widest({paragraph(words)}) > std::min(width, kTextWidth) - 5);
    CHECK(widest({table}) == width);
  }
}

TEST_CASE("optional columns give way before names become unreadable, the last one first") {
  TableBlock table;
  table.columns = {
      {"name", Align::kLeft}, {"a"}, {"b", Align::kRight, true}, {"c", Align::kRight, true}};
  table.rows = {{std::string(40, 'n'), "aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"}};
  const auto text = [&](int width) { return to_text({table}, {.width = width}); };
  const auto shows = [&](int width, const char* cell) {
    return text(width).find(cell) != std::string::npos;
  };
  CHECK(shows(80, "cccccccccc"));  // 2 + 40 + 3 * 12 columns
  CHECK(shows(58, "cccccccccc"));  // with 20 columns of the name
  CHECK_FALSE(shows(57, "cccccccccc"));
  CHECK(shows(57, "bbbbbbbbbb"));
  CHECK_FALSE(shows(45, "bbbbbbbbbb"));
  CHECK(shows(30, "aaaaaaaaaa"));
}

TEST_CASE("colour is only in what a terminal shows") {
  const Blocks blocks = {paragraph("half broke. Why", Tone::kBad, 10)};
  CHECK(to_text(blocks) == "half broke. Why\n");
  CHECK(to_text(blocks, {.colour = true}) == "\x1b[1;31mhalf broke\x1b[0m. Why\n");
  CHECK(to_text(blocks, {.width = 6, .colour = true}) == "half\nbroke.\nWhy\n");  // two lines
}

TEST_CASE("numbers") {
  CHECK(percent(0) == ".");
  CHECK(percent(1) == "100%");
  CHECK(percent(0.4213) == "42.1%");
  CHECK(percent(0.0321) == "3.21%");
  CHECK(percent(2e-7) == "2e-05%");
  CHECK(percent(std::nan("")) == "-");
  CHECK(loss_text(0.04123) == "0.0412");
  CHECK(loss_text(std::nan("")) == "nan");
  CHECK(seconds_text(0.44) == "0.4 s");
  CHECK(seconds_text(125) == "2 min 05 s");
  CHECK(scale_text(65536) == "2^16");
  CHECK(scale_text(3) == "3");
  CHECK(scale_text(0.5) == "2^-1");
}

TEST_CASE("sparklines go from the smallest to the largest mean") {
  CHECK(sparkline(std::vector<double>{0, 7}, 20) == "▁█");
  CHECK(sparkline(std::vector<double>{1, 1, 1}, 20) == "▁▁▁");
  CHECK(sparkline(std::vector<double>{0, 2, 7, 7}, 2) == "▁█");
  CHECK(sparkline(std::vector<double>{1, std::nan(""), 2}, 20) == "▁x█");
  CHECK(sparkline({}, 20).empty());
}

}  // namespace
}  // namespace lockstep
