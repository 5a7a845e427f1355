// Damage to bytes, and to the tree of groups, datasets and attributes.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/record/capture/capture_file.h"
#include "tests/record/capture/damage.h"

namespace lockstep::testing {
namespace {

using Kind = StoredValue::Kind;

struct Place {
  StoredNode* parent = nullptr;
  std::string name;
  std::string path;
  StoredNode& node() const { return parent->children.at(name); }
};

void collect_places(StoredNode& node, const std::string& path, std::vector<Place>& places) {
  for (auto& [name, child] : node.children) {
    const std::string at = path + "/" + name;
    places.push_back({&node, name, at});
    collect_places(child, at, places);
  }
}

std::string odd_name(Dice& dice) {
  const std::vector<std::string> names = {
      "x",           "\xff\xfe\x80", "a\x1b[31mred", "line\nbreak", "%zz",
      "%",           "000",          "-1",           "999999",      std::string(5000, 'n'),
      "\xc0\xaf",    "\xed\xa0\x80", "n0",           "fc1.weight",  " ",
      "\xe2\x80\xae"};
  return names[dice.below(names.size())];
}

double odd_number(Dice& dice) {
  constexpr double kNumbers[] = {0,
                                 -1,
                                 1,
                                 2,
                                 0.5,
                                 1e300,
                                 -1e300,
                                 1e15,
                                 1e16,
                                 4294967296.0,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN(),
                                 1e-300,
                                 7};
  return kNumbers[dice.below(std::size(kNumbers))];
}

StoredValue odd_value(Dice& dice) {
  switch (dice.below(8)) {
    case 0:
      return number_value(odd_number(dice));
    case 1:
      return integer_value(Kind::kI64, static_cast<int64_t>(dice.below(5)) - 2);
    case 2:
      return integer_value(
          Kind::kI64, std::numeric_limits<int64_t>::max() - static_cast<int64_t>(dice.below(2)));
    case 3:
      return integer_value(Kind::kU8, static_cast<int64_t>(dice.below(256)));
    case 4:
      return text_value(odd_name(dice));
    case 5:
      return {Kind::kText, {3}, {}, {odd_name(dice), "", odd_name(dice)}};
    case 6:
      return {Kind::kF32, {0}, {}, {}};
    default:
      return {Kind::kI64, {2, 1}, std::string(16, '\x7f'), {}};
  }
}

void retype(StoredValue& value, Dice& dice) {
  const auto count = static_cast<size_t>(value.size());
  value.kind = static_cast<Kind>(dice.below(6));
  value.texts.assign(value.kind == Kind::kText ? count : 0, "text");
  value.bytes.resize(count * bytes_of(value.kind), '\x01');
}

void reshape(StoredValue& value, Dice& dice) {
  switch (dice.below(4)) {
    case 0:
      value.shape.push_back(1 + static_cast<int64_t>(dice.below(3)));
      break;
    case 1:
      if (!value.shape.empty()) value.shape.pop_back();
      break;
    case 2:
      if (!value.shape.empty()) dice.pick(value.shape) += static_cast<int64_t>(dice.below(3)) - 1;
      break;
    default:
      value.shape.assign(9, 1);
  }
  const auto count = static_cast<size_t>(value.size());
  value.texts.resize(value.kind == Kind::kText ? count : 0);
  value.bytes.resize(count * bytes_of(value.kind), '\0');
}

void scramble(StoredValue& value, Dice& dice) {
  for (std::string& text : value.texts) text = odd_name(dice);
  for (size_t left = 1 + dice.below(4); left > 0 && !value.bytes.empty(); --left) {
    dice.pick(value.bytes) = static_cast<char>(dice.below(256));
  }
  if (value.kind == Kind::kF32 && dice.one_in(2)) {
    for (size_t i = 0; i + sizeof(float) <= value.bytes.size(); i += sizeof(float)) {
      const auto x = static_cast<float>(odd_number(dice));
      std::memcpy(&value.bytes[i], &x, sizeof x);
    }
  }
}

std::string damage_attribute(StoredNode& node, Dice& dice) {
  if (node.attributes.empty()) {
    node.attributes[odd_name(dice).substr(0, 100)] = odd_value(dice);
    return "attribute added";
  }
  auto chosen = node.attributes.begin();
  std::advance(chosen, static_cast<std::ptrdiff_t>(dice.below(node.attributes.size())));
  const std::string name = chosen->first;
  switch (dice.below(5)) {
    case 0:
      node.attributes.erase(chosen);
      return name + " dropped";
    case 1:
      retype(chosen->second, dice);
      return name + " retyped";
    case 2:
      scramble(chosen->second, dice);
      return name + " scrambled";
    default:
      chosen->second = odd_value(dice);
      return name + " replaced";
  }
}

std::string damage_place(const Place& place, const std::vector<Place>& places, Dice& dice) {
  StoredNode& node = place.node();
  switch (dice.below(node.data ? 10 : 7)) {
    case 0:
      place.parent->children.erase(place.name);
      return "dropped";
    case 1: {
      StoredNode moved = std::move(node);
      place.parent->children.erase(place.name);
      place.parent->children[odd_name(dice)] = std::move(moved);
      return "renamed";
    }
    case 2:
      place.parent->children[odd_name(dice)] = StoredNode(node);
      return "doubled";
    case 3: {
      const StoredNode other = places[dice.below(places.size())].node();
      place.parent->children[place.name] = other;
      return "replaced by another";
    }
    case 4: {
      StoredNode* deepest = &node;
      node.data.reset();
      for (size_t depth = dice.below(20); depth > 0; --depth) {
        deepest = &deepest->children["0"];
        deepest->data.reset();
      }
      return "made a deep group";
    }
    case 5:
      node.children.clear();
      node.data = odd_value(dice);
      return "made an odd dataset";
    case 6:
      return damage_attribute(node, dice);
    case 7:
      retype(*node.data, dice);
      return "retyped";
    case 8:
      reshape(*node.data, dice);
      return "reshaped";
    default:
      scramble(*node.data, dice);
      return "scrambled";
  }
}

}  // namespace

std::string damaged_bytes(const std::string& bytes, Dice& dice) {
  std::string out = bytes;
  switch (dice.below(4)) {
    case 0:
    case 1:
      for (size_t flips = 1 + dice.below(8); flips > 0; --flips) {
        dice.pick(out) ^= static_cast<char>(1U << dice.below(8));
      }
      break;
    case 2:
      out.resize(dice.below(out.size()));
      break;
    default: {  // a piece is moved, removed or zeroed
      const size_t from = dice.below(out.size()), length = 1 + dice.below(2048);
      const std::string piece = bytes.substr(from, length);
      const size_t to = dice.below(out.size());
      if (dice.one_in(3)) {
        out.erase(from, length);
      } else if (dice.one_in(2)) {
        out.insert(to, piece);
      } else {
        out.replace(to, std::min(piece.size(), out.size() - to),
                    dice.one_in(2) ? piece : std::string(piece.size(), '\0'));
      }
    }
  }
  if (out == bytes) out.back() ^= 1;
  return out;
}

std::string damage_tree(StoredNode& tree, Dice& dice) {
  std::vector<Place> places;
  collect_places(tree, "", places);
  if (dice.one_in(10)) return "/: " + damage_attribute(tree, dice);
  // Some groups hold most of the objects: half of the damage goes to the others.
  std::vector<Place> few;
  for (const Place& place : places) {
    if (!place.node().attributes.empty() || place.parent == &tree) few.push_back(place);
  }
  const Place place = dice.one_in(2) ? dice.pick(few) : dice.pick(places);
  if (dice.one_in(3)) return place.path + ": " + damage_attribute(place.node(), dice);
  return place.path + ": " + damage_place(place, places, dice);
}

}  // namespace lockstep::testing
