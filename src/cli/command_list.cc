// lockstep list: everything that has a name.
#include <fmt/format.h>
#include <algorithm>

#include <memory>

#include "src/cli/command.h"
#include "src/cli/listing.h"
#include "src/core/error.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

struct ListArgs {
  std::string topic, name;
  bool markdown = false, json = false, schema = false;
};

// Switches may follow an accumulator's name; no row has them.
Listing listing_of(const ListTopic& topic, const std::string& name) {
  if (name.empty()) return topic.make();
  return topic.name == "accumulators" ? list_accumulator(name) : row_of(topic.make(), name);
}

int list(const ListArgs& args) {
  if (args.markdown + args.json + args.schema > 1) {
    throw InputError("list: --markdown, --json and --schema", "choose one");
  }
  if (args.topic.empty()) {
    size_t width = 0;
    for (const ListTopic& topic : list_topics()) width = std::max(width, topic.name.size());
    for (const ListTopic& topic : list_topics()) {
      fmt::print("{:<{}}  {}\n", topic.name, width, topic.help);
    }
    return kExitFine;
  }
  const ListTopic& topic = find_row("list", args.topic, list_topics());
  if (args.schema) {
    if (topic.schema == nullptr) {
      throw InputError(fmt::format("list {} --schema: only keys of JSON have one", topic.name),
                       "a topic that ends in -keys");
    }
    fmt::print("{}", topic.schema());
    return kExitFine;
  }
  const Listing listing = listing_of(topic, args.name);
  fmt::print("{}", args.markdown ? listing_markdown(listing)
                   : args.json   ? listing_json(listing)
                                 : listing_text(listing));
  return kExitFine;
}

}  // namespace

std::function<int()> declare_list(CLI::App& app) {
  auto args = std::make_shared<ListArgs>();
  app.add_option("TOPIC", args->topic, "what to list [the topics]")->type_name("");
  app.add_option("NAME", args->name, "one row only; an accumulator's with its drawing")
      ->type_name("");
  app.add_flag("--markdown", args->markdown, "print a Markdown table");
  app.add_flag("--json", args->json, "print JSON");
  app.add_flag("--schema", args->schema, "of keys of JSON: print a JSON Schema");
  return [args] { return list(*args); };
}

}  // namespace lockstep
