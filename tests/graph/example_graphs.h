// Small graphs the graph tests share.
#pragma once

#include "src/graph/builder.h"

namespace lockstep::testing {

// conv, batch_norm, relu, pool, flatten, linear, cross_entropy: every kind of value that has a
// site.
inline Graph tiny_cnn() {
  GraphBuilder b("tiny_cnn");
  const Value images = b.input("images", {{2, 1, 4, 4}});
  const Value labels = b.input("labels", {{2}, ElementType::kInt});
  Value x = b.conv2d("conv1", images, /*out_channels=*/2, /*kernel=*/3, /*stride=*/1,
                     /*padding=*/1);
  x = b.relu("relu1", b.batch_norm("bn1", x));
  x = b.max_pool2d("pool1", x, /*kernel=*/2, /*stride=*/2);
  x = b.linear("fc1", b.flatten("flatten", x), 3);
  b.name_output("logits", x);
  b.set_loss(b.op("cross_entropy", {x, labels}, {}, ""));
  return b.finish();
}

// h = linear(x) is used twice (h + relu(h)), and so is the weight matrix of the second layer.
inline Graph two_consumers() {
  GraphBuilder b("two_consumers");
  const Value x = b.input("x", {{3, 4}});
  const Value h = b.linear("fc1", x, 4);
  const Value sum = b.op("add", {h, b.relu("relu", h)}, {}, "residual");
  const Value w = b.parameter("tied.weight", {4, 4});
  const Value once = b.op("linear", {sum, w}, {}, "tied");
  const Value twice = b.op("linear", {once, w}, {}, "tied_again");
  b.set_loss(b.op("mse_loss", {twice, b.input("target", {{3, 4}})}, {}, ""));
  return b.finish();
}

// A trunk (its weight used twice) with two heads; loss = near + far, and both reach the trunk.
inline Graph two_losses() {
  GraphBuilder b("two_losses");
  const Value x = b.input("x", {{3, 4}});
  const Value w = b.parameter("trunk.weight", {4, 4});
  const Value h = b.relu("relu", b.op("linear", {x, w}, {}, "trunk"));
  const Value again = b.op("linear", {h, w}, {}, "trunk_again");
  const Value goal = b.input("goal", {{3, 2}});
  const Value near = b.op("mse_loss", {b.linear("head.near", h, 2), goal}, {}, "near");
  const Value far = b.op("mse_loss", {b.linear("head.far", again, 2), goal}, {}, "far");
  b.name_output("loss/near", near);
  b.name_output("loss/far", far);
  b.set_loss(b.op("add", {near, far}, {}, "loss"));
  return b.finish();
}

}  // namespace lockstep::testing
