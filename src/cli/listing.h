// The topics of `lockstep list`, and a listing as text, Markdown and JSON.
// Every listing is made from the rows of the table it shows; a topic is one line in listing.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Listing {
  std::vector<std::string> columns;  // the first is the name
  std::vector<std::vector<std::string>>
      rows;  // as many cells as columns; "" where nothing is known
  // A drawing per row, or none at all. JSON always has them; text and Markdown where draws is true.
  std::vector<std::string> pictures = {};
  bool draws = false;
};

struct ListTopic {
  std::string_view name, help;
  Listing (*make)();
  std::string (*schema)() = nullptr;  // of JSON whose keys the topic lists
};
std::span<const ListTopic> list_topics();

// The row whose first cell is `name`, with its drawing.
// Throws: InputError with a did-you-mean.
Listing row_of(const Listing& listing, std::string_view name);
// An accumulator with its drawing; switches may follow its name. Throws: InputError.
Listing list_accumulator(std::string_view name);

std::string listing_text(const Listing& listing);
std::string listing_markdown(const Listing& listing);
std::string listing_json(const Listing& listing);

}  // namespace lockstep
