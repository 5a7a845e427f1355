// See capture_file.h.
#include "tests/record/capture/capture_file.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <cmath>
#include <cstring>

#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/json.h"
#include "src/graph/op.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/link_name.h"

namespace lockstep::testing {
namespace {

using Kind = StoredValue::Kind;

template <typename T>
StoredValue array_value(Kind kind, Shape shape, const std::vector<T>& numbers) {
  StoredValue value{kind, std::move(shape), {}, {}};
  value.bytes.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return value;
}

StoredNode leaf(StoredValue value) {
  StoredNode node;
  node.data = std::move(value);
  return node;
}

// Numbers around 0.5, different in every tensor; classes 0 and 1 for integers.
StoredNode tensor(const TensorType& type, bool as_double = false) {
  const auto count = static_cast<size_t>(element_count(type.shape));
  if (type.element == ElementType::kInt) {
    std::vector<int32_t> numbers(count);
    for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<int32_t>(i % 2);
    return leaf(array_value(Kind::kI32, type.shape, numbers));
  }
  std::vector<double> numbers(count);
  for (size_t i = 0; i < count; ++i)
    numbers[i] = 0.5 + 0.4 * std::sin(static_cast<double>(i * i + count));
  if (as_double) return leaf(array_value(Kind::kF64, type.shape, numbers));
  return leaf(
      array_value(Kind::kF32, type.shape, std::vector<float>(numbers.begin(), numbers.end())));
}

StoredNode packed_ones(const Shape& shape) {
  const auto bytes = static_cast<size_t>((element_count(shape) + 7) / 8);
  StoredNode node = leaf(
      array_value(Kind::kU8, {static_cast<int64_t>(bytes)}, std::vector<uint8_t>(bytes, 0xff)));
  node.attributes["shape"] = array_value(Kind::kI64, {static_cast<int64_t>(shape.size())}, shape);
  return node;
}

StoredNode values_of(const Graph& graph, bool parameters) {
  StoredNode group;
  if (parameters) {
    for (const Parameter& p : graph.parameters) group.children[p.name] = tensor(p.type);
  } else {
    for (const Buffer& b : graph.buffers) group.children[b.name] = tensor(b.type);
  }
  return group;
}

StoredNode states_of(const Graph& graph, double steps) {
  StoredNode group;
  for (const Parameter& p : graph.parameters) {
    StoredNode& state = group.children[p.name];
    state.children["exp_avg"] = tensor(p.type);
    state.children["exp_avg_sq"] = tensor(p.type);
    state.children["step"] = leaf(number_value(steps));
  }
  return group;
}

StoredNode gradients_of(const Graph& graph, bool as_double) {
  StoredNode group;
  for (const Parameter& p : graph.parameters) group.children[p.name] = tensor(p.type, as_double);
  return group;
}

constexpr const char* kHyper =
    R"([{"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-08, "weight_decay": 0.01}])";

StoredNode step_of(const Graph& graph, bool is_verify) {
  StoredNode step;
  step.attributes = {{"loss", number_value(1)},
                     {"scale_before", number_value(4)},
                     {"scale_after", number_value(4)},
                     {"growth_tracker_after", integer_value(Kind::kI32, 1)},
                     {"found_inf", integer_value(Kind::kU8, 0)},
                     {"stepped", integer_value(Kind::kU8, 1)},
                     {"clip_max_norm", number_value(1)},
                     {"clip_norm_type", number_value(2)},
                     {"clip_stage", text_value("unscaled")},
                     {"hyper", text_value(kHyper)}};
  StoredNode& micro = step.children["micro"].children["000"];
  micro.attributes = {{"graph", integer_value(Kind::kI32, 0)},
                      {"loss", number_value(1)},
                      {"loss_mult", number_value(1)}};
  for (const GraphInput& input : graph.inputs) {
    micro.children["inputs"].children[input.id.substr(2)] = tensor(input.type);
  }
  for (const Node& node : graph.nodes) {
    const TensorType* mask = drawn_mask(node);
    if (mask == nullptr) continue;
    StoredNode& rng = micro.children["rng"];
    StoredNode& stored = rng.children[std::to_string(rng.children.size())];
    stored = packed_ones(mask->shape);
    stored.attributes["node"] = text_value(node.id);
  }
  if (is_verify) step.children["grads"] = gradients_of(graph, false);
  step.children["grad_norms"] =
      leaf(array_value(Kind::kF64, {static_cast<int64_t>(graph.parameters.size())},
                       std::vector<double>(graph.parameters.size(), 1)));
  return step;
}

StoredNode verify_of(const Graph& graph) {
  StoredNode verify;
  StoredNode& before = verify.children["pre"];
  before.children["params"] = values_of(graph, true);
  before.children["buffers"] = values_of(graph, false);
  before.children["opt_state"] = states_of(graph, 1);
  StoredNode &ref32 = verify.children["ref32"], &ref64 = verify.children["ref64"];
  ref32.attributes["loss"] = ref64.attributes["loss"] = number_value(1);
  ref32.children["grads"] = gradients_of(graph, false);
  ref64.children["grads"] = gradients_of(graph, true);
  StoredNode& after = ref32.children["post"];
  after.children["params"] = values_of(graph, true);
  after.children["buffers"] = values_of(graph, false);
  after.children["opt_state"] = states_of(graph, 2);
  for (const Parameter& p : graph.parameters) {
    verify.children["noise"].children[p.name] = packed_ones(p.type.shape);
  }
  StoredNode& micro = verify.children["micro"].children["000"];
  for (const Node& node : graph.nodes) {
    if (node.op == "max_pool2d")
      micro.children["kinks"].children[node.id] = tensor(node.outputs[1]);
    if (node.op == "relu" || node.op == "leaky_relu" || node.op == "prelu" || node.op == "clamp") {
      micro.children["kinks"].children[node.id] = packed_ones(node.outputs[0].shape);
    }
    micro.children["acts"].children[node.id] =
        leaf(array_value(Kind::kF64, {4}, std::vector<double>(4, 1)));
  }
  return verify;
}

hid_t file_type(Kind kind) {
  switch (kind) {
    case Kind::kU8:
      return H5T_STD_U8LE;
    case Kind::kI32:
      return H5T_STD_I32LE;
    case Kind::kU32:
      return H5T_STD_U32LE;
    case Kind::kI64:
      return H5T_STD_I64LE;
    case Kind::kU64:
      return H5T_STD_U64LE;
    case Kind::kF32:
      return H5T_IEEE_F32LE;
    case Kind::kF64:
      return H5T_IEEE_F64LE;
    case Kind::kBf16:
    case Kind::kText:
      break;
  }
  return -1;
}

// As lockstep_capture writes it.
hdf5::Handle bf16_type() {
  constexpr size_t kBits = 16, kExponentBits = 8, kFractionBits = 7, kBias = 127;
  hdf5::Handle type(H5Tcopy(H5T_IEEE_F32LE), "make a type");
  hdf5::check(H5Tset_fields(type.id(), kBits - 1, kFractionBits, kExponentBits, 0, kFractionBits),
              "make a type");
  hdf5::check(H5Tset_ebias(type.id(), kBias), "make a type");
  hdf5::check(H5Tset_precision(type.id(), kBits), "make a type");
  hdf5::check(H5Tset_size(type.id(), sizeof(uint16_t)), "make a type");
  return type;
}

hdf5::Handle type_of_value(const StoredValue& value) {
  if (value.kind == Kind::kBf16) return bf16_type();
  if (value.kind != Kind::kText) return {H5Tcopy(file_type(value.kind)), "make a type"};
  hdf5::Handle type(H5Tcopy(H5T_C_S1), "make a text type");
  hdf5::check(H5Tset_size(type.id(), H5T_VARIABLE), "make a text type");
  hdf5::check(H5Tset_cset(type.id(), H5T_CSET_UTF8), "make a text type");
  return type;
}

hdf5::Handle space_of(const StoredValue& value) {
  if (value.shape.empty()) return {H5Screate(H5S_SCALAR), "make a space"};
  const std::vector<hsize_t> extents(value.shape.begin(), value.shape.end());
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
          "make a space"};
}

// Calls write(data of the value in HDF5's form).
template <typename Write>
void with_data(const StoredValue& value, Write write) {
  std::vector<const char*> pointers;
  for (const std::string& text : value.texts) pointers.push_back(text.c_str());
  if (value.size() > 0) {
    write(value.kind == Kind::kText ? static_cast<const void*>(pointers.data())
                                    : value.bytes.data());
  }
}

void write_node(hid_t object, const StoredNode& node);

void write_child(hid_t parent, const std::string& name, const StoredNode& node) {
  const std::string stored = hdf5::escape_link(name);
  if (!node.data) {
    const hdf5::Handle group = hdf5::create_group(parent, stored);
    return write_node(group.id(), node);
  }
  const hdf5::Handle type = type_of_value(*node.data), space = space_of(*node.data);
  const hdf5::Handle dataset(H5Dcreate2(parent, stored.c_str(), type.id(), space.id(), H5P_DEFAULT,
                                        H5P_DEFAULT, H5P_DEFAULT),
                             "write " + name);
  with_data(*node.data, [&](const void* data) {
    hdf5::check(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
                "write " + name);
  });
  write_node(dataset.id(), node);
}

// Attributes and children of the open object.
void write_node(hid_t object, const StoredNode& node) {
  for (const auto& [name, value] : node.attributes) {
    const hdf5::Handle type = type_of_value(value), space = space_of(value);
    const hdf5::Handle attribute(
        H5Acreate2(object, name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
        "write attribute " + name);
    with_data(value, [&](const void* data) {
      hdf5::check(H5Awrite(attribute.id(), type.id(), data), "write attribute " + name);
    });
  }
  for (const auto& [name, child] : node.children) write_child(object, name, child);
}

}  // namespace

StoredValue text_value(const std::string& text) {
  return {Kind::kText, {}, {}, {text}};
}
StoredValue number_value(double value) {
  return array_value(Kind::kF64, {}, std::vector<double>{value});
}
StoredValue integer_value(Kind kind, int64_t value) {
  StoredValue made{kind, {}, std::string(bytes_of(kind), '\0'), {}};
  std::memcpy(made.bytes.data(), &value, made.bytes.size());  // little-endian, as the file is
  return made;
}
StoredValue json_value(const std::string& text) {
  return {Kind::kU8, {static_cast<int64_t>(text.size())}, text, {}};
}

StoredNode capture_of(const Graph& graph) {
  StoredNode root;
  const auto text = [&](const char* name, const char* value) {
    root.attributes[name] = text_value(value);
  };
  text("format", "lockstep-capture"), text("torch_version", "2.13.0"), text("frontend", "run");
  text("device", "cpu"), text("model_class", "Seed"), text("replay_mode", "full");
  text("v0", "bit-exact"), text("created_utc", "2026-01-01T00:00:00Z");
  root.attributes["format_version"] = integer_value(Kind::kI32, 1);
  root.attributes["n_steps"] = integer_value(Kind::kI32, 2);
  root.attributes["complete"] = integer_value(Kind::kU8, 1);
  root.children["graphs"].children["0"].children["json"] = leaf(json_value(to_json(graph)));
  root.children["lines"] = leaf(
      json_value(R"([{"of":"optimizer lr","at":"a.py:3","hash":"0f"},{"of":"seed","value":"7"}])"));
  root.children["params"] = values_of(graph, true);
  root.children["buffers"] = values_of(graph, false);
  for (const Constant& c : graph.constants) {
    const bool is_int = c.type.element == ElementType::kInt;
    const char* bytes = static_cast<const char*>(c.data->raw());
    root.children["constants"].children[c.name] = leaf(
        {is_int ? Kind::kI32 : Kind::kF32, c.type.shape, std::string(bytes, c.data->bytes()), {}});
  }
  StoredNode& optimizer = root.children["optimizer"];
  optimizer.attributes["class"] = text_value("AdamW");
  StoredNode& group = optimizer.children["groups"].children["0"];
  StoredValue names{Kind::kText, {static_cast<int64_t>(graph.parameters.size())}, {}, {}};
  for (const Parameter& p : graph.parameters) names.texts.push_back(p.name);
  group.attributes = {{"params", names}, {"hyper", text_value("{}")}};
  optimizer.children["state"] = states_of(graph, 1);
  StoredNode& amp = root.children["amp"];
  amp.attributes = {{"autocast", integer_value(Kind::kU8, 1)},
                    {"device_type", text_value("cpu")},
                    {"dtype", text_value("bfloat16")},
                    {"cache_enabled", integer_value(Kind::kU8, 1)},
                    {"threads", integer_value(Kind::kI32, 2)}};
  amp.children["scaler"].attributes = {{"enabled", integer_value(Kind::kU8, 1)},
                                       {"scale", number_value(4)},
                                       {"growth_factor", number_value(2)},
                                       {"backoff_factor", number_value(0.5)},
                                       {"growth_interval", integer_value(Kind::kI32, 2000)},
                                       {"growth_tracker", integer_value(Kind::kI32, 0)}};
  root.children["steps"].children["000000"] = step_of(graph, false);
  root.children["steps"].children["000001"] = step_of(graph, true);
  root.children["verify"].children["000001"] = verify_of(graph);
  return root;
}

void write_tree(const std::string& path, const StoredNode& tree, bool newest) {
  const hdf5::Handle properties(H5Pcreate(H5P_FILE_CREATE), "make a property list");
  hdf5::check(H5Pset_userblock(properties.id(), kBlockBytes), "ask for a user block");
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  const H5F_libver_t form = newest ? H5F_LIBVER_LATEST : H5F_LIBVER_EARLIEST;
  hdf5::check(H5Pset_libver_bounds(access.id(), form, H5F_LIBVER_LATEST), "choose a file format");
  const hdf5::Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties.id(), access.id()),
                          "write " + path);
  const hdf5::Handle root = hdf5::open_group(file.id(), "/");
  write_node(root.id(), tree);
}

void seal_capture(const std::string& path) {
  std::string bytes = read_text_file(path);
  const std::string_view data = std::string_view(bytes).substr(kBlockBytes);
  std::string block = "LOCKSTEP-CAPTURE";
  const auto put = [&](uint64_t value, size_t count) {
    for (size_t i = 0; i < count; ++i) block += static_cast<char>(value >> (8 * i));
  };
  put(1, 4), put(kBlockBytes, 4), put(data.size(), 8);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest);
  block.append(reinterpret_cast<const char*>(digest), sizeof digest);
  bytes.replace(0, block.size(), block);
  write_text_file_atomically(path, bytes);
}

}  // namespace lockstep::testing
