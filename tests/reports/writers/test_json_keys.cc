// Rows of keys: the object, the table and the schema that follow from them, by hand.
#include "reports/writers/json_keys.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

struct Spot {
  uint64_t id = 7;
};
struct Part {
  bool is_new = true;
};
struct Thing {
  std::string name = "x", note;
  int64_t step = -1;
  double gap = std::numeric_limits<double>::infinity();
  std::vector<Spot> spots = {{}, {}};
  std::vector<std::pair<std::string, double>> by_format = {{"fp16", 2}};
  OrNull<std::string> lane;
  std::optional<Part> part;
};

const JsonObject<Spot>& json_object(const Spot*) {
  static const JsonObject<Spot> keys("spot", {{"id", &Spot::id, "where"}});
  return keys;
}
const JsonObject<Part>& json_object(const Part*) {
  static const JsonObject<Part> keys("", {{"is_new", &Part::is_new}});
  return keys;
}
const JsonObject<Thing>& json_object(const Thing*) {
  static const JsonObject<Thing> keys =
      JsonObject<Thing>("",
                        {
                            format_key<Thing>("thing"),
                            {"name", &Thing::name, "its name"},
                            {"note", filled(&Thing::note)},
                            {"step", [](auto& t) { return known(t.step); }},
                            {"gap", &Thing::gap},
                            {"spots", &Thing::spots},
                            {"scales", &Thing::by_format},
                            {"lane", &Thing::lane},
                        })
          .also(&Thing::part);
  return keys;
}

TEST_CASE("JSON of rows: what does not apply is absent, what is not finite is null") {
  Thing thing;
  CHECK(json_value(thing)["gap"].is_null());
  CHECK(json_value(thing).dump() ==
        R"({"format":"thing","name":"x","gap":null,"spots":[{"id":7},{"id":7}],)"
        R"("scales":{"fp16":2.0},"lane":null})");
  thing.note = "y", thing.step = 3, thing.lane = {"l"}, thing.part = Part{}, thing.spots.clear();
  CHECK(json_value(thing).dump() ==
        R"({"format":"thing","name":"x","note":"y","step":3,"gap":null,"spots":[],)"
        R"("scales":{"fp16":2.0},"lane":"l","is_new":true})");
}

TEST_CASE("the table of rows: types follow from the getters, named objects come last") {
  std::string table;
  for (const JsonKeyLine& line : json_key_lines(json_type<Thing>().shape())) {
    table += line.key + " (" + line.value + ") " + line.meaning + "\n";
  }
  CHECK(table ==
        "format (text) always `thing`\nname (text) its name\nnote (text) \nstep (integer) \n"
        "gap (number, null) \nspots (list of spot) \nscales (object of number, null) \n"
        "lane (text, null) \nis_new (true, false) \nSPOT.id (integer) where\n");
}

TEST_CASE("the schema of rows: what may be absent is not required; named objects are $defs") {
  auto schema = nlohmann::json::parse(
      json_schema(json_type<Thing>().shape(), {.title = "T", .description = "D"}));
  CHECK(schema["required"] == nlohmann::json({"format", "name", "gap", "spots", "scales", "lane"}));
  CHECK(schema["properties"]["format"]["const"] == "thing");
  CHECK(schema["properties"]["step"] == nlohmann::json{{"type", "integer"}});
  CHECK(schema["properties"]["lane"]["type"] == nlohmann::json({"string", "null"}));
  CHECK(schema["properties"]["spots"]["items"]["$ref"] == "#/$defs/spot");
  CHECK(schema["properties"]["scales"]["additionalProperties"]["type"][1] == "null");
  CHECK(schema["$defs"]["spot"]["properties"]["id"]["minimum"] == 0);
  auto other = nlohmann::json::parse(json_schema(
      json_type<Thing>().shape(),
      {.title = "T", .description = "D", .other_file = "o.json", .other_name = "report"}));
  CHECK(other["properties"]["spots"]["items"]["$ref"] == "o.json#/$defs/spot");
  CHECK_FALSE(other.contains("$defs"));
}

}  // namespace
}  // namespace lockstep
