// The reader's errors for captures that are wrong in one way each. It returns nothing that could
// harm code that trusts it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <hdf5.h>

#include <bit>
#include <functional>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/graph/builder.h"
#include "src/graph/json_text.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/verification.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "tests/record/capture/capture_file.h"
#include "tests/record/capture/seed_graphs.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;
using Kind = StoredValue::Kind;

std::string error_of_capture(const StoredNode& tree) {
  const TemporaryFolder folder;
  const std::string path = folder.file("case.h5");
  write_tree(path, tree, /*newest=*/false);
  seal_capture(path);
  return error_of([&] { read_capture(path, CaptureUse::kVerify); });
}

// The reader's error for the seed network with this index after `damage`.
std::string error_of_tree(const std::function<void(StoredNode&)>& damage, size_t seed = 0) {
  StoredNode tree = capture_of(seed_graphs().at(seed));
  damage(tree);
  return error_of_capture(tree);
}

std::string error_of_graph(const std::function<void(Json&)>& damage, size_t seed = 0) {
  return error_of_tree(
      [&](StoredNode& tree) {
        StoredNode& node = tree.children["graphs"].children["0"].children["json"];
        Json graph = Json::parse(node.data->bytes);
        damage(graph);
        node.data = json_value(graph.dump());
      },
      seed);
}

bool says(const std::string& message, const std::string& part) {
  const bool found = message.find(part) != std::string::npos;
  if (!found) MESSAGE(message);
  return found;
}

StoredValue numbers_list(std::initializer_list<int64_t> numbers) {
  StoredValue value{Kind::kI64, {static_cast<int64_t>(numbers.size())}, {}, {}};
  for (const int64_t number : numbers) value.bytes += integer_value(Kind::kI64, number).bytes;
  return value;
}

}  // namespace

TEST_CASE("an undamaged capture is read") {
  for (size_t seed = 0; seed < seed_graphs().size(); ++seed) {
    CHECK(error_of_tree([](StoredNode&) {}, seed) == "");
  }
}

TEST_CASE("bytes that are not text are shown as numbers") {
  CHECK(says(error_of_tree([](StoredNode& tree) {
               tree.attributes["model_class"] = text_value("a\xff\x1b[2J");
             }),
             "@model_class: holds 'a\\xff\\u001b[2J', must be UTF-8 without control characters"));
  CHECK(says(
      error_of_tree([](StoredNode& tree) { tree.children["params"].children["\x1b]0;x"] = {}; }),
      "/params/\\u001b]0;x: its name must be UTF-8 without control characters"));
  CHECK(
      says(error_of_graph([](Json& graph) { graph["nodes"][0]["module"] = "\x1b[31mred"; }),
           "nodes[0].module: is \"\\u001b[31mred\", must have at most 4096 bytes and no control"));
}

TEST_CASE("names of objects are escaped in one way") {
  const TemporaryFolder folder;
  const std::string path = folder.file("case.h5");
  write_tree(path, capture_of(seed_graphs().front()), false);
  {
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    hdf5::create_group(file.id(), "a%41");
  }
  seal_capture(path);
  CHECK(says(error_of([&] { read_capture(path, CaptureUse::kVerify); }),
             "/a%41: its name must have % as %25"));
}

TEST_CASE("JSON that needs far more memory than its text") {
  CHECK(says(error_of([] { parse_json(std::string(kMostJsonDepth + 1, '[')); }),
             "nested 33 deep, at most 32"));
  CHECK(says(error_of([] { parse_json(std::string(kMostJsonBytes + 1, ' ')); }),
             "67108865 bytes of JSON, at most"));
  CHECK(says(error_of([] { parse_json("[1, 2"); }), "error at byte 6 of 5"));
  CHECK(says(error_of([] { parse_json("[1e999]"); }), "beyond the range of double"));
  CHECK(parse_json(R"(["[[[[\"[[["])").size() == 1);  // brackets in strings do not count
  CHECK(says(error_of_tree([](StoredNode& tree) {
               tree.children["steps"].children["000000"].attributes["hyper"] =
                   text_value(std::string(100'000, '['));
             }),
             "attribute hyper: is JSON nested 100000 deep"));
}

TEST_CASE("a graph keeps its limits") {
  const auto set = [](auto value, const char* list, size_t place, const char* field) {
    return [=](Json& graph) { graph[list][place][field] = value; };
  };
  CHECK(says(error_of_graph(set(Json::array({1LL << 31}), "params", 0, "shape")),
             "params[0].shape[0]: is 2147483648, must be an integer in [-(2^31-1), 2^31-1]"));
  CHECK(says(error_of_graph(set(Json::array({1 << 20, 1 << 20}), "params", 0, "shape")),
             "params[0].shape: has 2 dimensions and 1.1e+12 elements, at most 16 and 1e+11"));
  CHECK(says(error_of_graph(set(Json(std::vector<int>(17, 1)), "params", 0, "shape")),
             "params[0].shape: has 17 dimensions"));
  CHECK(says(error_of_graph(set(std::string(5000, 'n'), "nodes", 1, "src")),
             "must have at most 4096 bytes"));
  CHECK(says(
      error_of_graph([](Json& graph) { graph["nodes"][7]["attrs"]["ignore_index"] = 1LL << 40; }),
      "nodes[7].attrs.ignore_index: is 1099511627776"));
}

TEST_CASE("a graph that no machine holds is refused before it runs") {
  const std::string error = error_of_graph([](Json& graph) {
    // x (2,4) -> (2 10^9, 4) -> its sum, as a second, unused loss.
    const Json shape = Json::array({1'000'000'000, 2, 4});
    for (int i = 0; i < 20; ++i) {
      const std::string id = "n" + std::to_string(100 + i);
      graph["nodes"].push_back({{"id", id},
                                {"op", "expand"},
                                {"in", {"in0"}},
                                {"attrs", {{"shape", shape}}},
                                {"out", {{{"shape", shape}, {"dtype", "f32"}}}}});
    }
  });
  CHECK(says(error, "the values of its nodes take 596.0 GiB, this machine has"));
}

TEST_CASE("captures must not have ops of backward passes") {
  // max_pool2d's backward op does not check the operand that says where gradients go.
  const std::string error = error_of_graph([](Json& graph) {
    graph["nodes"].push_back({{"id", "n100"},
                              {"op", "relu_backward"},
                              {"in", {"n0", "n0"}},
                              {"attrs", Json::object()},
                              {"out", graph["nodes"][0]["out"]}});
  });
  CHECK(says(error, "node n100 (relu_backward) is part of a backward pass"));
}

TEST_CASE("attributes of the wrong type are found before they are used") {
  const auto attribute = [](size_t node, const char* name, auto value) {
    return [=](Json& graph) { graph["nodes"][node]["attrs"][name] = value; };
  };
  CHECK(says(error_of_graph(attribute(7, "ignore_index", "many")),
             "'ignore_index' must be an integer"));
  for (const auto& [op, name] : {std::pair{"add", "alpha"}, {"kl_div", "log_target"}}) {
    size_t place = 0;
    const Graph graph = seed_graphs().at(4);
    while (graph.nodes.at(place).op != op) ++place;
    CHECK(says(error_of_graph(attribute(place, name, "much"), 4),
               fmt::format("attribute '{}' must be", name)));
  }
  size_t place = 0;
  const Graph graph = seed_graphs().at(2);
  while (graph.nodes.at(place).op != "sdpa") ++place;
  CHECK(says(error_of_graph(attribute(place, "scale", "much"), 2),
             "attribute 'scale' must be a number"));
}

TEST_CASE("windows and scales beyond any use") {
  const Graph graph = seed_graphs().at(1);
  const auto with = [&](const std::string& op, const Json& attributes) {
    size_t place = 0;
    while (graph.nodes.at(place).op != op) ++place;
    return error_of_graph([&](Json& json) { json["nodes"][place]["attrs"] = attributes; }, 1);
  };
  // Half a billion taps left of the image: neither counted one by one nor allowed.
  CHECK(says(with("max_pool2d", {{"kernel", 1 << 30}, {"padding", 1 << 29}, {"stride", 1}}),
             "must be at most 64 or 4 times the image"));
  CHECK(says(with("upsample_nearest2d", {{"scale", 1e300}}),
             "the output may have 2147483647 rows at most"));
}

TEST_CASE("packed bits are checked before they are unpacked") {
  const auto mask = [](StoredNode& tree) -> StoredNode& {
    return tree.children["steps"]
        .children["000000"]
        .children["micro"]
        .children["000"]
        .children["rng"]
        .children["0"];
  };
  CHECK(says(error_of_tree([&](StoredNode& tree) {
               mask(tree).attributes["shape"] = numbers_list({1 << 20, 1 << 20});
             }),
             "shape [1048576, 1048576] does not fit node n3, whose mask is [2, 4]"));
  CHECK(says(
      error_of_tree([&](StoredNode& tree) {
        mask(tree).attributes["shape"] = numbers_list({0, std::numeric_limits<int64_t>::max()});
      }),
      "attribute shape has extent 9.223372036854776e+18, must be in [0, 2147483647]"));
  CHECK(says(error_of_tree([&](StoredNode& tree) { mask(tree).data = json_value("four"); }),
             "is uint8[4], the packed bits of shape [2, 4] are uint8[1]"));
}

TEST_CASE("kinks and summaries belong to the graph of their micro-batch") {
  const auto micro = [](StoredNode& tree, const char* group) -> StoredNode& {
    return tree.children["verify"]
        .children["000001"]
        .children["micro"]
        .children["000"]
        .children[group];
  };
  CHECK(says(error_of_tree([&](StoredNode& tree) {
               micro(tree, "kinks").children["n0"] = micro(tree, "kinks").children["n2"];
             }),
             "kinks/n0: names no node with a kink in its micro-batch's graph"));
  CHECK(says(error_of_tree([&](StoredNode& tree) {
               micro(tree, "acts").children["n99"] = micro(tree, "acts").children["n2"];
             }),
             "acts/n99: names no node of its micro-batch's graph"));
}

TEST_CASE("a verify step on a short last batch has that graph's shapes") {
  const auto network = [](int64_t batch) {
    GraphBuilder b("Short");
    const Value x = b.input("batch[0]", {{batch, 3}});
    const Value y = b.relu("relu", b.linear("fc", x, 2));
    b.set_loss(b.op("mse_loss", {y, b.input("batch[1]", {{batch, 2}})}, {}, "loss"));
    return b.finish();
  };
  StoredNode tree = capture_of(network(4)), last = capture_of(network(3));
  tree.children["graphs"].children["1"] = last.children["graphs"].children["0"];
  tree.children["verify"] = last.children["verify"];
  StoredNode& step = tree.children["steps"].children["000001"];
  step = last.children["steps"].children["000001"];
  CHECK(says(error_of_capture(tree), "must be float32[4, 3]"));
  step.children["micro"].children["000"].attributes["graph"] = integer_value(Kind::kI32, 1);
  CHECK(error_of_capture(tree) == "");
}

TEST_CASE("one name is one tensor in all graphs") {
  const std::string error = error_of_tree([](StoredNode& tree) {
    auto& graphs = tree.children["graphs"].children;
    graphs["1"] = capture_of(seed_graphs().at(4)).children["graphs"].children["0"];
    Json graph = Json::parse(graphs["1"].children["json"].data->bytes);
    graph["params"].push_back({{"name", "bn.running_mean"}, {"shape", {4}}, {"dtype", "f32"}});
    graphs["1"].children["json"].data = json_value(graph.dump());
  });
  CHECK(says(error,
             "'bn.running_mean' is a buffer f32[4] and a parameter f32[4], must be one thing"));
}

TEST_CASE("an input cannot pose as a mask") {
  CHECK(says(error_of_graph([](Json& graph) { graph["inputs"][0]["path"] = "mask:n3"; }),
             "input in0 has path 'mask:n3': mask:... is reserved for masks"));
}

TEST_CASE("a parameter is in one group") {
  const auto group = [](StoredNode& tree) -> StoredNode& {
    return tree.children["optimizer"].children["groups"].children["0"];
  };
  CHECK(says(error_of_tree([&](StoredNode& tree) {
               StoredValue& names = group(tree).attributes["params"];
               names.texts.push_back(names.texts[0]);
               names.shape[0] += 1;
             }),
             "is named twice"));
}

TEST_CASE("recorded updates: every step that was taken has weights of the parameters' shapes") {
  const auto record = [](StoredNode& tree) {
    tree.attributes["replay_mode"] = text_value("recorded");
    for (auto& [name, step] : tree.children["steps"].children) {
      step.children["params"] = tree.children["params"];
    }
  };
  CHECK(error_of_tree(record) == "");
  const auto step_of = [](StoredNode& tree) -> StoredNode& {
    return tree.children["steps"].children["000001"];
  };
  const auto lost = [&](StoredNode& tree) {
    record(tree);
    step_of(tree).children.erase("params");
  };
  CHECK(
      says(error_of_tree(lost), "/steps/000001: has no group params, the weights after the step"));
  CHECK(error_of_tree([&](StoredNode& tree) {
          lost(tree);
          step_of(tree).attributes["stepped"] = integer_value(Kind::kU8, 0);
        }) == "");
  CHECK(says(error_of_tree([&](StoredNode& tree) {
               record(tree);
               auto& weights = step_of(tree).children["params"].children;
               weights.begin()->second = weights.rbegin()->second;
             }),
             "/steps/000001/params/"));
}

// A capture of one step that says it is a part, with gradients that are the weights.
StoredNode part_of(const Graph& graph) {
  StoredNode tree = capture_of(graph);
  tree.children["steps"].children.erase("000001");
  tree.children.erase("verify");
  tree.attributes["n_steps"] = integer_value(Kind::kI32, 1);
  StoredNode& part = tree.children["part"];
  for (const char* name : {"module", "class", "output", "input_gradient", "gradient"}) {
    part.attributes[name] = text_value("bit-exact");
  }
  for (const char* name : {"step", "rank"}) part.attributes[name] = integer_value(Kind::kI64, 0);
  part.attributes["world_size"] = integer_value(Kind::kI64, 2);
  part.attributes["loss_scale"] = number_value(1);
  part.attributes["output_off"] = number_value(0);
  part.children["gradients"] = tree.children["params"];
  for (auto& [name, gradient] : part.children["gradients"].children) gradient.attributes.clear();
  const size_t calls = tree.children["steps"].children["000000"].children["micro"].children.size();
  for (size_t call = 0; call < calls; ++call) {
    part.children["calls"].children[fmt::format("{:03d}", call)];
  }
  return tree;
}

TEST_CASE("a part: what it says of its run is read by verify alone, and must fit") {
  const auto error_of_part =
      [](const std::function<void(StoredNode & tree, StoredNode & part)>& damage) {
        StoredNode tree = part_of(seed_graphs().front());
        damage(tree, tree.children["part"]);
        return error_of_capture(tree);
      };
  CHECK(error_of_part([](StoredNode&, StoredNode&) {}) == "");
  CHECK(says(error_of_part([](StoredNode&, StoredNode& part) { part.attributes.erase("module"); }),
             "/part: attribute module is missing"));
  CHECK(says(error_of_part([](StoredNode&, StoredNode& part) {
               part.attributes["rank"] = integer_value(Kind::kI64, 2);
             }),
             "rank is 2 of 2"));
  CHECK(says(
      error_of_part([](StoredNode&, StoredNode& part) { part.children["calls"].children["7"]; }),
      "/part/calls: has"));
  CHECK(says(error_of_part([](StoredNode& tree, StoredNode&) {
               auto& steps = tree.children["steps"].children;
               steps["000001"] = steps["000000"];
               tree.attributes["n_steps"] = integer_value(Kind::kI32, 2);
             }),
             "has 2 steps, a part has one"));
  CHECK(says(error_of_part([](StoredNode&, StoredNode& part) {
               StoredNode& run = part.children["run_gradients"];
               run = part.children["gradients"];
               auto& [name, gradient] = *run.children.begin();
               const auto rank = static_cast<int64_t>(gradient.data->shape.size());
               StoredValue offset{Kind::kI64, {rank}, {}, {}};
               for (int64_t d = 0; d < rank; ++d) {
                 offset.bytes += integer_value(Kind::kI64, 1).bytes;
               }
               gradient.attributes["offset"] = offset;
             }),
             "has a block"));
  const TemporaryFolder folder;
  const std::string path = folder.file("part.h5");
  write_tree(path, part_of(seed_graphs().front()), /*newest=*/false);
  seal_capture(path);
  const Capture whole = read_capture(path, CaptureUse::kVerify);
  const Capture replayed = read_capture(path, CaptureUse::kReplay);
  REQUIRE(replayed.part);
  CHECK(whole.part->gradients.size() == whole.graphs[0].parameters.size());
  CHECK(replayed.part->gradients.empty());
  CHECK(replayed.part->world_size == 2);
}

TEST_CASE("bfloat16 takes two bytes and is the float whose upper half it is") {
  StoredNode tree = capture_of(seed_graphs().front());
  StoredNode& weight = tree.children["params"].children.begin()->second;
  std::string& bytes = weight.data->bytes;
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::string codes;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto code = static_cast<uint16_t>(0x3f80 + 3 * i);  // from 1 on
    codes.append(reinterpret_cast<const char*>(&code), sizeof code);
    numbers[i] = std::bit_cast<float>(uint32_t{code} << 16);
  }
  bytes = codes;
  weight.data->kind = Kind::kBf16;
  const std::string name = tree.children["params"].children.begin()->first;
  const TemporaryFolder folder;
  const std::string path = folder.file("case.h5");
  for (const bool newest : {false, true}) {
    write_tree(path, tree, newest);
    seal_capture(path);
    const Capture capture = read_capture(path, CaptureUse::kReplay);
    const auto found = capture.start.values.at(name).as<float>();
    CHECK(std::vector<float>(found.begin(), found.end()) == numbers);
  }
}

TEST_CASE("a replay does not read what only verify compares") {
  const TemporaryFolder folder;
  const std::string path = folder.file("case.h5");
  StoredNode tree = capture_of(seed_graphs().front());
  write_tree(path, tree, /*newest=*/false);
  seal_capture(path);
  const Capture whole = read_capture(path, CaptureUse::kVerify);
  const Capture part = read_capture(path, CaptureUse::kReplay);
  CHECK(whole.verify.size() == 1);
  CHECK(whole.steps[1].grads.size() == whole.graphs[0].parameters.size());
  CHECK(part.verify.empty());
  CHECK(part.steps[1].grads.empty());
  CHECK(part.steps[1].grad_norms == whole.steps[1].grad_norms);
  CHECK(part.start.values.size() == whole.start.values.size());
  tree.children["verify"].children["000001"].children["ref32"].attributes.erase("loss");
  write_tree(path, tree, /*newest=*/false);
  seal_capture(path);
  CHECK(says(error_of([&] { read_capture(path, CaptureUse::kVerify); }),
             "ref32: attribute loss is missing"));
  CHECK(error_of([&] { read_capture(path, CaptureUse::kReplay); }) == "");
}

TEST_CASE("a micro-batch's batch: inputs, and masks unpacked into the memory of the previous one") {
  CapturedMicroBatch first, second;
  first.inputs["batch"] = second.inputs["batch"] = Tensor::from<float>({2}, {1, 2});
  first.masks["n1"] = {{3}, {0b1010'0000}};
  second.masks["n1"] = {{3}, {0b0100'0000}};
  first.masks["n2"] = {{1}, {0b1000'0000}};
  Batch batch;
  unpack_batch(first, batch);
  CHECK(batch.size() == 3);
  CHECK(batch.at("mask:n1").same_bits(Tensor::from<int32_t>({3}, {1, 0, 1})));
  const void* const memory = batch.at("mask:n1").raw();
  unpack_batch(second, batch);
  CHECK(batch.size() == 2);  // the mask of another graph's node is gone
  CHECK(batch.at("batch").same_bits(first.inputs.at("batch")));
  CHECK(batch.at("mask:n1").same_bits(Tensor::from<int32_t>({3}, {0, 1, 0})));
  CHECK(batch.at("mask:n1").raw() == memory);
}

TEST_CASE("a constant of two graphs is one tensor") {
  const auto second_graph = [](const std::function<void(Json&)>& change) {
    return [=](StoredNode& tree) {
      auto& graphs = tree.children["graphs"].children;
      Json graph = Json::parse(graphs["0"].children["json"].data->bytes);
      graph["constants"] = {{{"name", "k"}, {"dtype", "f32"}, {"shape", {2}}}};
      graphs["0"].children["json"].data = json_value(graph.dump());
      change(graph);
      graphs["1"].children["json"].data = json_value(graph.dump());
      tree.children["constants"].children["k"].data =
          StoredValue{Kind::kF32, {2}, std::string(2 * sizeof(float), '\0'), {}};
    };
  };
  CHECK(error_of_tree(second_graph([](Json&) {})) == "");
  CHECK(says(error_of_tree(second_graph([](Json& graph) {
               graph["constants"][0]["shape"] = {1, 2};
             })),
             "/constants/k: two graphs give it different types or shapes"));
}

TEST_CASE("more data than a file of its size may have") {
  const TemporaryFolder folder;
  const std::string path = folder.file("case.h5");
  write_tree(path, capture_of(seed_graphs().front()), /*newest=*/false);
  {
    // Never written: no byte of it is in the file.
    const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    const hsize_t count = hsize_t{1} << 29;
    const hdf5::Handle space(H5Screate_simple(1, &count, nullptr), "make a space");
    const hdf5::Handle data(H5Dcreate2(file.id(), "zeros", H5T_NATIVE_DOUBLE, space.id(),
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                            "make a dataset");
  }
  seal_capture(path);
  CHECK(says(error_of([&] { read_capture(path, CaptureUse::kVerify); }),
             "the limit for a file of its size"));
}

TEST_CASE("a result next to the capture with control characters is ignored") {
  const Verification result{
      "abc", "0.1.0", "2026", true, {{"V1", "subject", "PASS", "figure", {{"tensors", 3}}}}};
  CHECK(verification_from_json(to_json(result), "abc").has_value());
  Verification hostile = result;
  hostile.gates[0].status = "PASS\x1b[2J";
  CHECK(!verification_from_json(to_json(hostile), "abc").has_value());
  CHECK(!verification_from_json(std::string(100'000, '['), "abc").has_value());
}

TEST_CASE("records from a damaged process") {
  using namespace stored_frame;
  // No more memory may be allocated than there are bytes.
  const auto parse = [](const std::string& bytes) {
    size_t at = 0;
    return parse_stored_frames(
        [&](char* into, size_t count) {
          const size_t got = bytes.copy(into, count, at);
          at += got;
          return got;
        },
        bytes.size());
  };
  const auto fails = [&](const std::string& bytes) {
    CHECK_THROWS_WITH_AS(parse(bytes), "the records are damaged", std::runtime_error);
  };
  const StoredValue one = number_value(1);
  const std::string good =
      attribute("a", one) + group("g") + dataset("d", one) + close() + close() + finish();
  CHECK(parse(good).children.at("g").children.at("d").data->bytes == one.bytes);
  for (size_t length = 0; length < good.size(); ++length) fails(good.substr(0, length));
  fails(close() + finish());
  fails(group("g") + finish());
  fails(group("g") + close() + group("g") + close() + finish());
  fails(attribute("a", one) + attribute("a", one) + finish());
  fails(dataset("d", one) + group("in a dataset") + close() + close() + finish());
  fails(group("\xff") + close() + finish());
  fails(attribute("a", text_value("\x1b[2J")) + finish());
  std::string deep;
  for (int i = 0; i <= kStoredDepth; ++i) deep += group("g");
  fails(deep);
  const StoredValue huge{Kind::kF64, {int64_t{1} << 31, int64_t{1} << 31}, {}, {}};
  fails(dataset("d", huge) + close() + finish());
  CHECK(says(error_of([&] { parse(problem("/x: is too large")); }), "/x: is too large"));
}

}  // namespace lockstep::testing
